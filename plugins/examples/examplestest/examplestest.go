// Package examplestest helps tests to run the sample handlers: it builds them, and fetches
// the webhook payloads that one of them is for.
package examplestest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/guesthand/guesthand/abi/guest"
)

// source is how a sample handler comes to its module. A name that ends in -rust is the committed
// module beside a handler of the same name in Go, one that ends in -javascript the script there.
type source struct {
	flags []string // of go build; nil: the module is committed
	once  sync.Once
	wasm  []byte
	err   error
}

var sources = map[string]*source{
	"github":               {flags: []string{"-buildmode=c-shared"}},
	"orders":               {flags: []string{"-buildmode=c-shared"}},
	"ping":                 {},
	"poller":               {flags: []string{"-buildmode=c-shared"}},
	"poller-javascript":    {},
	"poller-rust":          {},
	"validator":            {flags: []string{"-buildmode=c-shared"}},
	"validator-javascript": {},
	"validator-rust":       {},
	"webhook":              {flags: []string{"-buildmode=c-shared"}},
	"webhook-javascript":   {},
	"webhook-rust":         {},
	"wordcount":            {flags: []string{"-ldflags=-s -w"}},
}

// Build writes the sample handlers into a folder of the test's own, as JOB.wasm, and returns
// the paths by job. Without jobs it builds all of them. Each is compiled once for a process.
func Build(t testing.TB, jobs ...string) map[string]string {
	t.Helper()
	if len(jobs) == 0 {
		for job := range sources {
			jobs = append(jobs, job)
		}
	}
	dir := t.TempDir()
	paths := map[string]string{}
	for _, job := range jobs {
		path := filepath.Join(dir, job+".wasm")
		if err := os.WriteFile(path, Wasm(t, job), 0o644); err != nil {
			t.Fatal(err)
		}
		paths[job] = path
	}
	return paths
}

// Wasm is the module of one sample handler. The bytes must not be changed.
func Wasm(t testing.TB, job string) []byte {
	t.Helper()
	s := sources[job]
	if s == nil {
		t.Fatalf("there is no sample handler %q", job)
	}
	s.once.Do(func() { s.wasm, s.err = s.build(job) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.wasm
}

func (s *source) build(job string) ([]byte, error) {
	here, err := folder()
	if err != nil {
		return nil, err
	}
	if name, ok := strings.CutSuffix(job, "-javascript"); ok {
		script, err := os.ReadFile(filepath.Join(here, "..", name, name+".js"))
		return guest.JavaScript(name+".js", script), err
	}
	job = strings.TrimSuffix(job, "-rust")
	from := filepath.Join(here, "..", job)
	if s.flags == nil {
		return os.ReadFile(filepath.Join(from, job+".wasm"))
	}
	dir, err := os.MkdirTemp("", "guesthand-examples-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // only a copy of what is returned
	out := filepath.Join(dir, job+".wasm")
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath"}, s.flags...), "-o", out, ".")...)
	cmd.Dir = from
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the sample handler %s: %w\n%s", job, err, text)
	}
	return os.ReadFile(out)
}

// folder is where this package's source is.
func folder() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("the sample handlers' sources cannot be found in a test built with -trimpath")
	}
	return filepath.Dir(file), nil
}

// Payload is one webhook delivery as GitHub makes it.
type Payload struct {
	Event string // goes into the header X-GitHub-Event
	Name  string // names it in a test: "issues/17"
	Body  []byte
}

const (
	examplesPackage = "@octokit/webhooks-examples"
	examplesVersion = "7.6.1"
)

// Payloads are all deliveries in the npm package @octokit/webhooks-examples, those of
// github.com and of the versions of GitHub's server. The package is installed into the user's
// cache folder once. The test is skipped where there is no npm, and, except in CI, where npm
// cannot reach its registry.
func Payloads(t testing.TB) []Payload {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(installed(t), "node_modules", examplesPackage, "*", "index.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no payloads: %v", examplesPackage, err)
	}
	var all []Payload
	for _, file := range files {
		all = append(all, payloadsOf(t, file)...)
	}
	return all
}

func payloadsOf(t testing.TB, file string) []Payload {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var events []struct {
		Name     string
		Examples []json.RawMessage
	}
	if err := json.Unmarshal(b, &events); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var all []Payload
	from := filepath.Base(filepath.Dir(file))
	for _, e := range events {
		for i, body := range e.Examples {
			all = append(all, Payload{Event: e.Name, Name: fmt.Sprintf("%s/%s/%d", from, e.Name, i), Body: body})
		}
	}
	return all
}

// installed is the folder that has the package in its node_modules.
func installed(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no cache folder for %s: %v", examplesPackage, err)
	}
	dir := filepath.Join(cache, "guesthand-test", "webhooks-examples-"+examplesVersion)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skipf("npm, which installs %s, is not here", examplesPackage)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	// Installed beside its place and renamed, so that a half installation is never used.
	work, err := os.MkdirTemp(filepath.Dir(dir), "install-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work) // gone already where all went well
	cmd := exec.CommandContext(t.Context(), npm, "install", "--prefix", work, "--no-save", "--no-audit", "--no-fund",
		"--ignore-scripts", examplesPackage+"@"+examplesVersion)
	if text, err := cmd.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("npm could not install %s: %v\n%s", examplesPackage, err, text)
		}
		t.Fatalf("npm could not install %s: %v\n%s", examplesPackage, err, text)
	}
	if err := os.Rename(work, dir); err != nil {
		if _, serr := os.Stat(dir); serr != nil {
			t.Fatal(err)
		} // else another process was first
	}
	return dir
}
