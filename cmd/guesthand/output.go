package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

// jsonLine prints one JSON line.
func jsonLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// table prints aligned columns with a heading.
func table(w io.Writer, heading string, rows func(add func(cells ...any))) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(heading, " ", "\t"))
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, printable(fmt.Sprint(c)))
		}
		fmt.Fprintln(t)
	})
	return t.Flush()
}

// printable makes text from a guest or a message safe for a terminal and one table cell.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\u00b7'
		}
		return r
	}, s)
}

// printableLines is printable for text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return orDash(digest)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// progress shows how far a long command is, where standard error is a terminal.
type progress struct {
	what  string
	shown bool
	last  time.Time
}

func newProgress(what string) *progress {
	return &progress{what: what, shown: term.IsTerminal(int(os.Stderr.Fd()))}
}

func (p *progress) at(done, of int) {
	if !p.shown || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(os.Stderr, "\r%s %d of %d", p.what, done, of)
}

func (p *progress) end() {
	if p.shown && !p.last.IsZero() {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}
