package config

import (
	"slices"
	"strings"
)

// Nearest is the name among those given that was probably meant by the one written, or ""
// where none is close.
func Nearest(written string, names []string) string {
	// At most every third letter may be wrong, and never the only one.
	best, least := "", min(len(written)/3+1, len(written)-1, 3)
	for _, name := range slices.Sorted(slices.Values(names)) {
		// A key of many letters cannot be meant by a string of thousands.
		if d := len(written) - len(name); d > least || -d > least {
			continue
		}
		if d := distance(strings.ToLower(written), strings.ToLower(name)); d < least || d == least && best == "" {
			best, least = name, d
		}
	}
	return best
}

// distance counts the letters to insert, drop, change or swap with their neighbour between
// a and b (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// didYouMean is the end of a sentence about an unknown name: the nearest one, else all of them.
func didYouMean(written string, names []string) string {
	if near := Nearest(written, names); near != "" {
		return "did you mean " + near + "?"
	}
	if len(names) == 0 {
		return "nothing is known here"
	}
	return "known here: " + strings.Join(slices.Sorted(slices.Values(names)), ", ")
}
