package engine_test

import (
	"os"
	"strings"
	"testing"
)

// capabilities are the columns of the matrix in docs/handlers.md, each with the row of the
// conformance table that shows it.
var capabilities = []struct{ name, row string }{
	{"outcomes", "retry-after"},
	{"wrapped errors", "wrapped mark"},
	{"typed decoding", "not decoded"},
	{"attributes", "attributes"},
	{"log", "log"},
	{"time left", "remaining"},
	{"state", "state"},
	{"HTTP", "http, not granted"},
	{"values", "kv"},
	{"sends", "send"},
	{"crash text", "panic"},
}

var titles = map[string]string{"go": "Go", "c": "C", "rust": "Rust", "assemblyscript": "AssemblyScript", "zig": "Zig",
	"javascript": "JavaScript", "wat": "WebAssembly text"}

// TestHandlersMatrix holds the matrix of docs/handlers.md to the conformance table.
func TestHandlersMatrix(t *testing.T) {
	doc, err := os.ReadFile("../../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, row := range conformance {
		rows[row.name] = true
	}
	heading := "| language | dialect |"
	for _, c := range capabilities {
		heading += " " + c.name + " |"
		if !rows[c.row] {
			t.Errorf("%s is shown by no row: %q", c.name, c.row)
		}
	}
	want := []string{heading}
	for _, g := range guests {
		name, _, _ := strings.Cut(strings.ReplaceAll(g.name, "/", "-"), "-")
		title, variant := titles[name], strings.TrimPrefix(strings.TrimSuffix(g.name, "-command"), name+"-")
		if variant != g.name && variant != name && variant != "" && !strings.Contains(g.name, "/") {
			title += " (" + variant + ")"
		}
		line := "| " + title + " | " + string(g.dialect) + " |"
		for _, c := range capabilities {
			if g.cannot[c.row] == "" {
				line += " yes |"
			} else {
				line += " no |"
			}
		}
		want = append(want, line)
	}
	for _, line := range want {
		if !strings.Contains(string(doc), line+"\n") {
			t.Errorf("docs/handlers.md lacks the row\n%s", line)
		}
	}
}
