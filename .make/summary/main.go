// Command summary reads what `go test -json` prints and shows what a person wants to see of
// it: the closing line of every package, everything a failed test printed, and at the end
// one line for each suite that was skipped, with its reason. It exits with 1 where the
// tests failed or the stream tells of none, so that a broken pipe cannot look green.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json`, as documented by `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Output     string
}

// location is how the testing package prefixes what a test logs.
var location = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// report collects a test run. The zero value is not usable; call newReport.
type report struct {
	out     io.Writer
	printed map[string][]string // by package and test, what it has printed so far
	skips   []skip
	passed  int
	failed  int
	broken  bool // a package failed, a build or a process's end included
}

type skip struct{ pkg, reason, test string }

func newReport(out io.Writer) *report {
	return &report{out: out, printed: make(map[string][]string)}
}

func main() {
	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// read takes the whole stream. A line that is no JSON comes from the go command itself and
// is shown as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprintln(r.out, strings.TrimRight(line, "\n"))
			} else {
				r.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test output: %w", err)
		}
	}
}

func (r *report) add(e event) {
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.broken = true
	case "output":
		if e.Test == "" {
			r.packageLine(e.Output)
			return
		}
		r.printed[key] = append(r.printed[key], e.Output)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		delete(r.printed, key)
	case "skip":
		if e.Test != "" {
			r.skips = append(r.skips, skip{e.Package, reason(r.printed[key]), e.Test})
		}
		delete(r.printed, key)
	case "fail":
		r.fail(e, key)
	}
}

// packageLine shows what a package prints outside its tests: its closing line, a panic, a
// data race, but not the PASS above the closing line.
func (r *report) packageLine(line string) {
	if strings.TrimSpace(line) == "PASS" || strings.Contains(line, "[no test files]") {
		return
	}
	fmt.Fprint(r.out, line)
}

func (r *report) fail(e event, key string) {
	if e.Test == "" {
		r.broken = true
		r.showUnfinished(e.Package)
		return
	}
	r.failed++
	fmt.Fprint(r.out, strings.Join(r.printed[key], ""))
	delete(r.printed, key)
}

// showUnfinished prints what the tests of a package had said when its process died under
// them: they have no end of their own.
func (r *report) showUnfinished(pkg string) {
	var keys []string
	for key := range r.printed {
		if strings.HasPrefix(key, pkg+"\x00") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprint(r.out, strings.Join(r.printed[key], ""))
		delete(r.printed, key)
	}
}

// reason is what a test gave to Skip: what it logged last.
func reason(printed []string) string {
	for _, line := range slices.Backward(printed) {
		if at := location.FindString(line); at != "" {
			return strings.TrimSpace(line[len(at):])
		}
	}
	return "no reason given"
}

// finish prints the totals and the skipped suites, and tells whether all is well.
func (r *report) finish() bool {
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skips))
	for _, line := range skipLines(r.skips) {
		fmt.Fprintln(r.out, line)
	}
	if r.passed+r.failed == 0 {
		fmt.Fprintln(r.out, "no test ran")
		return false
	}
	return r.failed == 0 && !r.broken
}

// skipLines makes one line of all tests of a package that were skipped for one reason.
func skipLines(skips []skip) []string {
	var lines []string
	for len(skips) > 0 {
		first := skips[0]
		same := func(s skip) bool { return s.pkg == first.pkg && s.reason == first.reason }
		n := 0
		for _, s := range skips {
			if same(s) {
				n++
			}
		}
		name := first.test
		if n > 1 {
			name = fmt.Sprintf("%s and %d more", name, n-1)
		}
		lines = append(lines, fmt.Sprintf("skipped: %s: %s: %s", first.pkg, name, first.reason))
		skips = slices.DeleteFunc(slices.Clone(skips), same)
	}
	return lines
}
