// Package docs_test checks what no compiler does: that imports run one way, that the
// documents agree with the tree, and that every dependency is accounted for.
package docs_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// treeFiles lists the repository's files as slash paths from the root: those that git
// tracks or would track, or all of them where there is no git.
func treeFiles(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return walkFiles(t)
	}
	var files []string
	for f := range strings.SplitSeq(string(out), "\x00") {
		if f == "" {
			continue
		}
		if info, err := os.Stat(filepath.Join(root, f)); err == nil && info.Mode().IsRegular() {
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

func walkFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "data", "node_modules"}, d.Name()):
			return fs.SkipDir
		case d.Type().IsRegular():
			files = append(files, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func exists(file string) bool {
	_, err := os.Stat(filepath.Join(root, file))
	return err == nil
}

// TestFiles wants what a stranger looks for first.
func TestFiles(t *testing.T) {
	for _, file := range []string{
		"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "Makefile", "config.toml", "go.mod",
		"abi/ABI.md", "docs/dependencies.md",
	} {
		if !exists(file) {
			t.Errorf("%s is missing", file)
		}
	}
	if n := strings.Count(read(t, "ARCHITECTURE.md"), "\n"); n >= 150 {
		t.Errorf("ARCHITECTURE.md has %d lines; it stays under 150, details belong to package comments", n)
	}
}

// markdown lists the documents.
func markdown(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(treeFiles(t), func(f string) bool {
		return path.Ext(f) != ".md" || strings.Contains("/"+f, "/testdata/")
	})
}

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)(?: "[^"]*")?\)`)
	scheme  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`)
	ticked  = regexp.MustCompile("`([^`\n]+)`")
)

// TestLinks follows every relative link in the documents, to its heading where it names one.
func TestLinks(t *testing.T) {
	for _, doc := range markdown(t) {
		text := fence.ReplaceAllString(read(t, doc), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if scheme.MatchString(m[1]) {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path.Join(path.Dir(doc), file)
			if file == "" {
				target = doc
			}
			if !exists(target) {
				t.Errorf("%s links to %s, which does not exist", doc, m[1])
			} else if anchor != "" && path.Ext(target) == ".md" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s, but %s has no such heading", doc, m[1], target)
			}
		}
	}
}

// anchors are the names that a document's headings get on a page.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		names = append(names, name)
	}
	return names
}

// TestPaths looks up every path of the tree that a document names in backticks.
func TestPaths(t *testing.T) {
	for _, doc := range markdown(t) {
		text := fence.ReplaceAllString(read(t, doc), "")
		for _, m := range ticked.FindAllStringSubmatch(text, -1) {
			if p := treePath(m[1]); p != "" && !exists(p) && !exists(exportedIn(p)) {
				t.Errorf("%s names `%s`, which does not exist", doc, m[1])
			}
		}
	}
}

// treePath is the path that a text in backticks names below one of the top folders, else "".
// What stands directly in plugins/ is the reader's own.
func treePath(text string) string {
	p := strings.TrimSuffix(strings.TrimPrefix(text, "./"), "...")
	top, rest, ok := strings.Cut(p, "/")
	if !ok || strings.ContainsAny(p, " *<>{}$|,;=\"'") ||
		!slices.Contains([]string{"host", "abi", "plugins", "drivers", "cmd", "docs", ".make", ".ci"}, top) {
		return ""
	}
	if top == "plugins" && !strings.Contains(rest, "/") && !strings.HasPrefix(rest, "examples") {
		return ""
	}
	return strings.TrimSuffix(p, "/")
}

// exportedIn is the package of a name like host/policy.Decide.
func exportedIn(p string) string {
	dir, base := path.Split(p)
	pkg, name, ok := strings.Cut(base, ".")
	if !ok || name == "" || name[0] < 'A' || name[0] > 'Z' {
		return p
	}
	return dir + pkg
}

// TestTreePath shows what counts as a path.
func TestTreePath(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"host/policy", "host/policy"},
		{"./drivers/...", "drivers"},
		{"plugins/resize.wasm", ""},
		{"plugins/examples/orders", "plugins/examples/orders"},
		{"text/plain", ""},
		{"drivers/<name>", ""},
		{"go test ./host", ""},
	} {
		if got := treePath(tc.text); got != tc.want {
			t.Errorf("treePath(%q) is %q, want %q", tc.text, got, tc.want)
		}
	}
	if got := exportedIn("host/policy.Decide"); got != "host/policy" {
		t.Errorf("exportedIn gives %q", got)
	}
}

// elsewhere matches what ties a file to one machine: a package registry's host, or an
// absolute path below somebody's work or home folder. The hosts are split so that this
// file does not match.
var elsewhere = regexp.MustCompile(strings.Join([]string{
	`(?:proxy|sum)\.` + `golang\.org`, `registry\.` + `npmjs\.org`, `(?:deb|security)\.` + `debian\.org`,
	`(?:files\.python` + `hosted|pypi)\.` + `org`, `(?:static|index)\.` + `crates\.io`, `repo1?\.` + `maven\.org`,
	"(?m)(?:^|[\\s\"'`(=:,])/(?:work|root|home/[a-z]+)/",
}, "|"))

// TestElsewhere wants no file to name a registry's host or a build machine's folders.
func TestElsewhere(t *testing.T) {
	for _, file := range treeFiles(t) {
		text := read(t, file)
		if strings.IndexByte(text[:min(len(text), 8000)], 0) >= 0 {
			continue // not text
		}
		for _, at := range elsewhere.FindAllStringIndex(text, 5) {
			line := 1 + strings.Count(text[:at[1]], "\n")
			t.Errorf("%s:%d names %q, which belongs to one machine", file, line, strings.TrimSpace(text[at[0]:at[1]]))
		}
	}
}

// TestScripts wants every script to be executable and to stop at the first fault.
func TestScripts(t *testing.T) {
	for _, file := range treeFiles(t) {
		text := read(t, file)
		if !strings.HasPrefix(text, "#!/usr/bin/env bash\n") {
			continue
		}
		info, err := os.Stat(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&0o111 == 0 && filepath.Separator == '/' {
			t.Errorf("%s is not executable", file)
		}
		if !bytes.Contains([]byte(text), []byte("\nset -euo pipefail\n")) {
			t.Errorf("%s lacks set -euo pipefail", file)
		}
	}
}
