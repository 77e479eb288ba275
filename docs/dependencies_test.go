package docs_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dependency is one row of docs/dependencies.md.
type dependency struct {
	module, reason, licence string
	users                   []string // folders such as host/engine, or "tests"
}

var requirement = regexp.MustCompile(`(?m)^(?:require)?\s+([a-z0-9.-]+\.[a-z]+(?:/\S+)?) v\S+`)

// TestDependencies compares docs/dependencies.md with what the code imports: every module
// with its reason, and the folders that use it.
func TestDependencies(t *testing.T) {
	listed := dependencies(t)
	used := moduleUsers(t)
	for module, users := range used {
		row, ok := listed[module]
		switch {
		case !ok:
			t.Errorf("docs/dependencies.md does not list %s, which is imported in %s", module, strings.Join(users, ", "))
		case row.reason == "":
			t.Errorf("docs/dependencies.md gives no reason for %s", module)
		case !slices.Equal(row.users, users):
			t.Errorf("docs/dependencies.md says %s is used by %s; the imports say %s",
				module, strings.Join(row.users, ", "), strings.Join(users, ", "))
		}
	}
	for module := range listed {
		if used[module] == nil {
			t.Errorf("docs/dependencies.md lists %s, which nothing imports", module)
		}
	}
}

// dependencies reads the table: | `module` | reason | used by | licence |.
func dependencies(t *testing.T) map[string]dependency {
	t.Helper()
	rows := make(map[string]dependency)
	for line := range strings.Lines(read(t, "docs/dependencies.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| `") || len(cells) != 4 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		d := dependency{module: strings.Trim(cells[0], "`"), reason: cells[1], licence: cells[3]}
		for user := range strings.SplitSeq(cells[2], ", ") {
			d.users = append(d.users, strings.ReplaceAll(user, "`", ""))
		}
		slices.Sort(d.users)
		if _, twice := rows[d.module]; twice {
			t.Errorf("docs/dependencies.md lists %s twice", d.module)
		}
		rows[d.module] = d
	}
	return rows
}

// moduleUsers maps each imported module to the folders that import it, in order, or to
// "tests" where no code but tests needs it.
func moduleUsers(t *testing.T) map[string][]string {
	t.Helper()
	var modules []string
	for _, m := range requirement.FindAllStringSubmatch(read(t, "go.mod"), -1) {
		modules = append(modules, m[1])
	}
	code, tests := make(map[string]map[string]bool), make(map[string]bool)
	for _, s := range sources(t) {
		for _, imp := range s.imports {
			if isStd(imp) || under(imp, module) {
				continue
			}
			m := moduleOf(imp, modules)
			if m == "" {
				t.Errorf("%s imports %s, which go.mod does not require", s.file, imp)
				continue
			}
			if code[m] == nil {
				code[m] = make(map[string]bool)
			}
			if isTest(s.file) {
				tests[m] = true
			} else {
				code[m][path.Dir(s.file)] = true
			}
		}
	}
	users := make(map[string][]string)
	for m, dirs := range code {
		users[m] = slices.Sorted(maps.Keys(dirs))
		if len(dirs) == 0 && tests[m] {
			users[m] = []string{"tests"}
		}
	}
	return users
}

// isTest tells files that no binary of ours holds: tests, and the conformance suite.
func isTest(file string) bool {
	return strings.HasSuffix(file, "_test.go") || under(file, "drivers/drivertest")
}

// moduleOf is the longest required module that holds a package.
func moduleOf(imp string, modules []string) string {
	best := ""
	for _, m := range modules {
		if under(imp, m) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

// licences are the ones we accept, each told by words that stand in no other of them.
var licences = []struct{ name, words string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"BSD", "Redistribution and use in source and binary forms, with or without modification, are permitted"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
}

// TestLicences reads the licence of every module that the binary or the tests are built
// from. Those of direct dependencies are as docs/dependencies.md says.
func TestLicences(t *testing.T) {
	listed := dependencies(t)
	mods := linkedModules(t)
	if len(mods) == 0 {
		t.Fatal("no module found")
	}
	for module, dir := range mods {
		name := licenceOf(t, dir)
		if name == "" {
			t.Errorf("%s has no licence that we accept", module)
		}
		if row, ok := listed[module]; ok && row.licence != name {
			t.Errorf("docs/dependencies.md says %s is under %s, its own file says %q", module, row.licence, name)
		}
	}
	if name := classify(read(t, "LICENSE")); name != "Apache-2.0" {
		t.Errorf("LICENSE is %q, not Apache-2.0", name)
	}
}

// linkedModules maps each module that our packages or their tests depend on to its folder.
func linkedModules(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-test", "-json=Module", "./...")
	cmd.Dir = root
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	mods := make(map[string]string)
	for dec := json.NewDecoder(out); ; {
		var p struct {
			Module *struct {
				Path, Dir string
				Main      bool
			}
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && !p.Module.Main {
			mods[p.Module.Path] = p.Module.Dir
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(fmt.Errorf("go list: %w", err))
	}
	return mods
}

// licenceOf reads a module's licence file, and is "" where there is none that we accept.
func licenceOf(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if found := classify(string(text)); found != "" {
			return found
		}
	}
	return ""
}

// classify names a licence by its text, whatever its line breaks.
func classify(text string) string {
	flat := strings.Join(strings.Fields(text), " ")
	for _, l := range licences {
		if strings.Contains(flat, l.words) {
			return l.name
		}
	}
	return ""
}
