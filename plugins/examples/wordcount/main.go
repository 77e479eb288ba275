//go:build wasip1

// Wordcount is a sample handler in the command dialect: an ordinary program that reads a
// text from standard input and prints its counts as JSON. It uses nothing of guesthand's, so
// it also runs under any other WASI runtime.
//
// Its exit code is the outcome: 0 for success, 12 (permanent) for input that is no text.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	retry     = 1
	permanent = 12
)

// commonest is how many of the most frequent words are told.
const commonest = 5

type counts struct {
	Bytes      int    `json:"bytes"`
	Characters int    `json:"characters"`
	Words      int    `json:"words"`
	Lines      int    `json:"lines"`
	Commonest  []word `json:"commonest"`
}

type word struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		exit(retry, "read the text: %v", err)
	}
	if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
		exit(permanent, "the input is not UTF-8 text")
	}
	if err := json.NewEncoder(os.Stdout).Encode(count(text)); err != nil {
		exit(retry, "write the counts: %v", err)
	}
}

func exit(code int, format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(code)
}

func count(text []byte) counts {
	words := bytes.Fields(text)
	c := counts{
		Bytes:      len(text),
		Characters: utf8.RuneCount(text),
		Words:      len(words),
		Lines:      bytes.Count(text, []byte("\n")),
		Commonest:  []word{},
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		c.Lines++ // the last line needs no newline
	}
	seen := map[string]int{}
	for _, w := range words {
		bare := bytes.TrimFunc(w, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
		if len(bare) > 0 {
			seen[strings.ToLower(string(bare))]++
		}
	}
	for w, n := range seen {
		c.Commonest = append(c.Commonest, word{w, n})
	}
	slices.SortFunc(c.Commonest, func(a, b word) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(a.Word, b.Word)
	})
	c.Commonest = c.Commonest[:min(commonest, len(c.Commonest))]
	return c
}
