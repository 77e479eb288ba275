package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/engine"
)

// tool finds a compiler: the one that the environment names, as build.sh takes it, else the
// first there is.
func tool(variable string, names ...string) string {
	for _, name := range append([]string{os.Getenv(variable)}, names...) {
		if path, err := exec.LookPath(name); err == nil && name != "" {
			return path
		}
	}
	return ""
}

// toolchain is the environment that a language's build.sh needs here, or why it cannot run.
func toolchain(t *testing.T, lang string, dialect engine.Dialect) (env []string) {
	t.Helper()
	need := func(variable string, names ...string) {
		path := tool(variable, names...)
		if path == "" {
			t.Skipf("no %s here", names[0])
		}
		env = append(env, variable+"="+path)
	}
	switch lang {
	case "go":
		need("GO", "go")
	case "rust":
		need("RUSTC", "/usr/bin/rustc", "rustc")
		target := "wasm32-unknown-unknown"
		if dialect == engine.Command {
			target = "wasm32-wasi*"
		}
		root, err := exec.CommandContext(t.Context(), strings.TrimPrefix(env[0], "RUSTC="), "--print", "sysroot").Output()
		if err != nil {
			t.Fatal(err)
		}
		if found, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "lib/rustlib", target)); found == nil {
			t.Skipf("rustc without the target %s here", target)
		}
	case "c":
		need("CC", "clang-19", "clang")
		if wasi, _ := filepath.Glob("/usr/lib/wasm32-wasi/libc.a"); dialect == engine.Command && wasi == nil && os.Getenv("CC") == "" {
			t.Skip("no wasi-libc here")
		}
	case "assemblyscript":
		need("ASC", "asc")
	case "zig":
		need("ZIG", "zig")
	case "wat":
		need("WABT", "wat2wasm")
	}
	return env
}

// newInto makes a project in the site's directory and builds it.
func (s *site) newInto(name, lang string, dialect engine.Dialect) (module string) {
	s.t.Helper()
	env := toolchain(s.t.(*testing.T), lang, dialect)
	made := lines[madeProject](s.t, s.must("new", name, "--lang", lang, "--dialect", string(dialect), "--json"))[0]
	if made.Name != name || made.Lang != lang || made.Dialect != string(dialect) || made.Module != name+".wasm" ||
		!slices.Contains(made.Files, "build.sh") || made.Next[0] != "cd "+name {
		s.t.Errorf("%+v", made)
	}
	// The command under the name that build.sh calls it by.
	wrapper := filepath.Join(s.dir, "guesthand")
	s.write("guesthand", "#!/bin/sh\n"+beMain+"=1 exec '"+os.Args[0]+"' \"$@\"\n")
	if err := os.Chmod(wrapper, 0o700); err != nil {
		s.t.Fatal(err)
	}
	build := exec.CommandContext(s.t.Context(), "./build.sh")
	build.Dir = filepath.Join(s.dir, name)
	build.Env = append(append(os.Environ(), "GUESTHAND="+wrapper, "CGO_ENABLED=0", "GOFLAGS="), env...)
	if out, err := build.CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(name, made.Module)
}

// Every language's project is made, built, tried, and dropped into a running host.
func TestNewProjects(t *testing.T) {
	s := newSite(t, `
[brokers.b]
driver = "embedded"
[queues.q]
broker = "b"
unknown_job = { wait = "200ms", tries = 0 }
[admin]
listen = "none"
`)
	s.start()
	for _, l := range languages {
		for _, dialect := range l.dialects() {
			t.Run(l.name+"/"+string(dialect), func(t *testing.T) {
				own := *s
				own.t = t
				own.tryProject("hello-"+l.name+"-"+string(dialect), l.name, dialect)
			})
		}
	}
}

func (s *site) tryProject(name, lang string, dialect engine.Dialect) {
	module := s.newInto(name, lang, dialect)
	for _, tc := range []struct {
		payload, outcome, text, result string
		delay                          int64
		status                         int
	}{
		{payload: "hello.txt", outcome: "success", result: "Hello, Ada!"},
		{payload: "busy.txt", outcome: "retry-after", text: "the greeter is asleep", delay: 30000, status: 1},
		{payload: "empty.txt", outcome: "permanent", text: "no name", status: 1},
	} {
		out, talk, status := s.do("invoke", module, "--json", "--payload", "@"+filepath.Join(s.dir, name, "payloads", tc.payload))
		got := lines[invocation](s.t, out)
		if status != tc.status || len(got) != 1 {
			s.t.Fatalf("%s: status %d, %s%s", tc.payload, status, out, talk)
		}
		if g := got[0]; g.Outcome != tc.outcome || !strings.Contains(g.Error, tc.text) || g.Result != tc.result ||
			g.DelayMS != tc.delay || g.Dialect != string(dialect) {
			s.t.Errorf("%s: %+v", tc.payload, g)
		}
	}
	wasm, err := os.ReadFile(filepath.Join(s.dir, module))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(filepath.Join("plugins", name+".wasm"), string(wasm))
	// Sent before the host has read it: the message waits for its handler.
	sent := s.must("send", "q", name, "--payload", "Grace", "--wait", "--json")
	if !strings.Contains(sent, "Hello, Grace!") {
		s.t.Errorf("the answer is %s", sent)
	}
}

func TestNewRefuses(t *testing.T) {
	s := newSite(t, quiet)
	s.write("there", "")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"there", "--lang", "wat"}, "there is there already"},
		{[]string{"plugins", "--lang", "wat"}, "plugins is there already"},
		{[]string{"Resize", "--lang", "wat"}, `"Resize" is no job's name`},
		{[]string{"../up", "--lang", "wat"}, `"../up" is no job's name`},
		{[]string{"a", "--lang", "rusty"}, `unknown language "rusty"` + "\nhint: did you mean rust?"},
		{[]string{"a", "--lang", "cobol"}, "hint: one of go, rust, c, "},
		{[]string{"a"}, "--lang is missing"},
		{[]string{"a", "--lang", "wat", "--dialect", "command"}, "WebAssembly text has no command form here"},
		{[]string{"a", "--lang", "go", "--dialect", "extism"}, `unknown dialect "extism"`},
	} {
		out, talk, status := s.do(append([]string{"new"}, tc.args...)...)
		if status != exitUsage || out != "" || !strings.Contains(talk, tc.want) {
			t.Errorf("new %v: status %d, %s%s", tc.args, status, out, talk)
		}
		if _, err := os.Stat(filepath.Join(s.dir, "a")); err == nil {
			t.Fatalf("new %v left a directory", tc.args)
		}
	}
}

// The tutorials give the commands and the needs of every language that new makes projects in.
func TestHandlersTutorials(t *testing.T) {
	doc, err := os.ReadFile("../../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range languages {
		_, section, ok := strings.Cut(string(doc), "\n## "+l.title+"\n")
		if !ok {
			t.Errorf("docs/handlers.md has no section %s", l.title)
			continue
		}
		section, _, _ = strings.Cut(section, "\n## ")
		for _, want := range []string{l.needs, l.commandNeeds, "guesthand new hello --lang " + l.name + "\n", "./build.sh\n", "guesthand invoke hello.wasm --payload @payloads/hello.txt\n"} {
			if !strings.Contains(section, want) {
				t.Errorf("docs/handlers.md, %s, lacks: %s", l.title, want)
			}
		}
	}
}

// TestHandlersWithoutSDK compiles the program of docs/handlers.md's last section.
func TestHandlersWithoutSDK(t *testing.T) {
	doc, err := os.ReadFile("../../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, source, _ := strings.Cut(string(doc), "```c\n")
	source, _, _ = strings.Cut(source, "```")
	s := newSite(t, quiet)
	s.write("hello.c", source)
	cc := strings.TrimPrefix(toolchain(t, "c", engine.Command)[0], "CC=")
	build := exec.CommandContext(t.Context(), cc, "--target=wasm32-wasi", "-O2", "-o", "hello.wasm", "hello.c")
	build.Dir = s.dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tc := range []struct {
		args                  []string
		outcome, text, result string
	}{
		{[]string{"--payload", "Ada"}, "success", "", "Hello, Ada!"},
		{nil, "permanent", "no name", ""},
		{[]string{"--payload", "Ada", "--header", "busy=1"}, "retry-after", "", ""},
	} {
		out, _, _ := s.do(append([]string{"invoke", "hello.wasm", "--json"}, tc.args...)...)
		if got := lines[invocation](t, out)[0]; got.Outcome != tc.outcome || got.Error != tc.text || got.Result != tc.result {
			t.Errorf("%v: %+v", tc.args, got)
		}
	}
}
