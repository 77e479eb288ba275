package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// quiet is a configuration for commands that need no broker.
const quiet = "[brokers.b]\ndriver = \"memory\"\n[queues.q]\nbroker = \"b\"\n"

func (s *site) script(t *testing.T, script string) string {
	t.Helper()
	s.write("h.js", script)
	if _, talk, status := s.do("build", "h.js"); status != 0 {
		t.Fatalf("build: status %d, %s", status, talk)
	}
	return "h.wasm"
}

func TestBuildAndRun(t *testing.T) {
	s := newSite(t, quiet)
	for _, tc := range []struct {
		name, script, outcome, text, result string
	}{
		{"returned text", `export default (m) => m.text.toUpperCase()`, "success", "", "ADA"},
		{"returned JSON", `export default (m) => ({ name: m.text })`, "success", "", `{"name":"Ada"}`},
		{"returned nothing", `export default () => {}`, "success", "", ""},
		{"awaited", `export default async function (m) { await new Promise((r) => setTimeout(r, 20)); return m.text; }`, "success", "", "Ada"},
		{"timers in order", `export default () => new Promise((done) => {
			const order = [];
			setTimeout(() => done(order.join()), 30);
			for (const n of [20, 10, 1]) setTimeout(() => order.push(n), n);
			clearTimeout(setTimeout(() => order.push("no"), 5));
		})`, "success", "", "1,10,20"},
		{"never settled", `export default () => new Promise(() => {})`, "retry", "the handler's promise is never settled", ""},
		{"thrown late", `export default async () => { await null; throw guesthand.permanent("late"); }`, "permanent", "late", ""},
		{"thrown in a timer", `export default () => new Promise(() => setTimeout(() => { throw new Error("tick"); }, 1))`, "retry", "tick at <anonymous> (h.js:1)", ""},
		{"thrown text", `export default () => { throw "oops"; }`, "retry", "oops", ""},
		{"a line", "export default function () {\n  const a = undefined;\n  return a.b;\n}", "retry", "TypeError: cannot read property 'b' of undefined at default (h.js:3)", ""},
		{"deep", `const f = (n) => 1 + f(n + 1); export default () => f(0)`, "retry", "InternalError: stack overflow at f (h.js:1)", ""},
		{"circular causes", `export default () => { const e = new Error("a"); e.cause = e; throw e; }`, "retry", "a: a: ", ""},
		{"ties", `export default () => [2.5, -2.5, 1.5].map((n) => n.toFixed()).concat((0.125).toFixed(2), (1.005).toFixed(2), (1e21).toFixed(2)).join()`,
			"success", "", "3,-3,2,0.13,1.00,1e+21"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			module := s.script(t, tc.script)
			out, talk, _ := s.do("invoke", module, "--payload", "Ada", "--json")
			got := lines[invocation](t, out)
			if len(got) != 1 {
				t.Fatal(talk)
			}
			if g := got[0]; g.Outcome != tc.outcome || g.Result != tc.result || !strings.HasPrefix(g.Error, tc.text) {
				t.Errorf("%s %q, error %q", g.Outcome, g.Result, g.Error)
			}
		})
	}
}

func TestBuildRefuses(t *testing.T) {
	s := newSite(t, quiet)
	for _, tc := range []struct {
		file, script, want string
		status             int
	}{
		{"h.js", "let a = 1;\nlet b = ;\n", "SyntaxError: unexpected token in expression: ';' at h.js:2", exitNotFine},
		{"h.js", "const a = 1;\na.b.c;\nexport default () => {}", "TypeError: cannot read property 'c' of undefined at <anonymous> (h.js:2)", exitNotFine},
		{"h.js", "export const a = 1", "the script exports no default function", exitNotFine},
		{"h.js", `import fs from "fs"; export default () => {}`, "could not load module 'fs'", exitNotFine},
		{"h.js", "export default () => \"\xff\"", "not UTF-8", exitNotFine},
		{"h.ts", "", "h.ts is no .js file", exitUsage},
	} {
		s.write(tc.file, tc.script)
		_, talk, status := s.do("build", tc.file, "-o", "out.wasm")
		if status != tc.status || !strings.Contains(talk, tc.want) {
			t.Errorf("%q: status %d, %s", tc.script, status, talk)
		}
	}
	s.write("h.js", `if (!guesthand.config("url")) throw new Error("no url"); export default () => {}`)
	s.must("build", "h.js", "--no-start")
	if left, _ := filepath.Glob(filepath.Join(s.dir, ".guesthand-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "out.wasm")); err == nil {
		t.Error("a module of a script that cannot start")
	}
}

// Every message finds random numbers of its own, though instances are copies of one.
func TestScriptsDrawRandomNumbers(t *testing.T) {
	s := newSite(t, quiet)
	module := s.script(t, `export default () => String(Math.random())`)
	if a, b := s.must("invoke", module, "--json"), s.must("invoke", module, "--json"); lines[invocation](t, a)[0].Result == lines[invocation](t, b)[0].Result {
		t.Error("the same number twice")
	}
}

// The runtime imports everything; what a script needs granted is what it uses.
func TestInspectScripts(t *testing.T) {
	s := newSite(t, quiet)
	for script, want := range map[string]string{
		`export default () => {}`: "",
		`export default () => { guesthand.fetch("https://example.com"); guesthand.kv.get("k"); }`: "http,kv",
		`const { send } = guesthand; export default () => send({ queue: "q", job: "j" })`:         "send",
	} {
		got := lines[inspection](t, s.must("inspect", s.script(t, script), "--json"))[0]
		if strings.Join(got.Needs, ",") != want || got.Dialect != "native" || !got.Metered {
			t.Errorf("%s: %+v", script, got)
		}
	}
}
