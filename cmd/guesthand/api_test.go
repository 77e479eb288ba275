package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/hosttest"
)

// documented is what docs/api.md says of a route.
type documented struct {
	route    string
	examples []apiExample
}

// apiExample is a request and what is answered, where the page shows it.
type apiExample struct {
	method, path, body string
	header             http.Header
	status             int
	answer             string
}

var (
	apiSection = regexp.MustCompile("(?m)^### `([^`]+)`$")
	apiBlock   = regexp.MustCompile("(?ms)^```http\n(.*?)^```$")
	muxRoute   = regexp.MustCompile(`s\.mux\.Handle(?:Func)?\("([^"]+)"`)
)

func documentedRoutes(t *testing.T) (all []documented) {
	t.Helper()
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	at := apiSection.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		d := documented{route: text[m[2]:m[3]]}
		for _, block := range apiBlock.FindAllStringSubmatch(text[m[1]:end], -1) {
			d.examples = append(d.examples, parseExample(t, block[1]))
		}
		all = append(all, d)
	}
	return all
}

// parseExample reads a request line, headers, a body after an empty line, and after another one
// the status and the answer.
func parseExample(t *testing.T, block string) apiExample {
	t.Helper()
	parts := strings.Split(strings.TrimSpace(block), "\n\n")
	head := strings.Split(parts[0], "\n")
	status, answer, _ := strings.Cut(parts[len(parts)-1], "\n")
	e := apiExample{header: http.Header{}, answer: answer}
	e.method, e.path, _ = strings.Cut(head[0], " ")
	for _, line := range head[1:] {
		name, v, _ := strings.Cut(line, ": ")
		e.header.Set(name, v)
	}
	if len(parts) == 3 {
		e.body = parts[1]
	}
	var err error
	if e.status, err = strconv.Atoi(status); err != nil || len(parts) < 2 || len(parts) > 3 {
		t.Fatalf("no example: %q", block)
	}
	return e
}

// The page names every route, and no other.
func TestAPIPageHasEveryRoute(t *testing.T) {
	code, err := os.ReadFile("../../host/admin/server.go")
	if err != nil {
		t.Fatal(err)
	}
	var routes, names []string
	for _, m := range muxRoute.FindAllStringSubmatch(string(code), -1) {
		routes = append(routes, m[1])
	}
	for _, d := range documentedRoutes(t) {
		names = append(names, d.route)
		if len(d.examples) == 0 && d.route != "GET /v1/live" { // which has no end
			t.Errorf("%s has no example", d.route)
		}
	}
	slices.Sort(routes)
	slices.Sort(names)
	if !slices.Equal(routes, names) || len(routes) == 0 {
		t.Errorf("docs/api.md has %q\nthe server has %q", names, routes)
	}
}

// pageEntry is the dead letter's entry in docs/api.md.
const pageEntry = "1.dn92zv8ocylq"

// Every example does what it says, in the order of the page.
func TestAPIExamples(t *testing.T) {
	address := freeAddress(t)
	s := newSite(t, fmt.Sprintf("[brokers.local]\ndriver = \"embedded\"\n[queues.default]\nbroker = \"local\"\nretry = { max_attempts = 3, base = \"10ms\" }\n[admin]\nlisten = %q\n", address))
	s.puppet("orders")
	s.start()
	ids := map[string]string{} // the page's, and those here
	for _, d := range documentedRoutes(t) {
		for _, e := range d.examples {
			if strings.Contains(e.path, pageEntry) { // it has another one after its replay
				hosttest.Eventually(t, patience, "a dead letter", func() bool { return len(s.dead("default")) == 1 })
				ids[pageEntry] = s.dead("default")[0].Entry
			}
			// What was sent before is to be over: an age of the oldest message would show.
			hosttest.Eventually(t, patience, "an empty queue", func() bool { return s.depth("default") == 0 })
			answer := s.example(address, e, ids)
			if d.route == "POST /v1/queues/{queue}/jobs/{job}" {
				ids[idOf(t, e.answer)] = idOf(t, answer)
				hosttest.Eventually(t, patience, "its run", func() bool { return len(s.runs("--id", idOf(t, answer))) == 1 })
			}
		}
	}
}

func idOf(t *testing.T, text string) string {
	t.Helper()
	var v struct{ ID string }
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.ID == "" {
		t.Fatalf("no id in %s", text)
	}
	return v.ID
}

// example sends a request and compares the answer's status and keys with the page's.
func (s *site) example(address string, e apiExample, ids map[string]string) (answer string) {
	s.t.Helper()
	for theirs, ours := range ids {
		e.path = strings.ReplaceAll(e.path, theirs, ours)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), e.method, "http://"+address+e.path, strings.NewReader(e.body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header = e.header
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if res.StatusCode != e.status {
		s.t.Errorf("%s %s: status %d, the page says %d: %s", e.method, e.path, res.StatusCode, e.status, b)
	}
	if e.answer != "" {
		var want, got any
		if err := json.Unmarshal([]byte(e.answer), &want); err != nil {
			s.t.Fatalf("%s %s: the page's answer: %v", e.method, e.path, err)
		}
		if err := json.Unmarshal(b, &got); err != nil {
			s.t.Fatalf("%s %s: %v in %s", e.method, e.path, err, b)
		}
		for _, d := range shapes(e.method+" "+e.path, want, got) {
			s.t.Error(d)
		}
	}
	return string(b)
}

// shapes lists where two JSON values differ in kind or in the names of their fields. Lists are
// compared by their first items.
func shapes(at string, want, got any) (diffs []string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s: the page has an object, the answer %v", at, got)}
		}
		for name := range g {
			if _, ok := w[name]; !ok {
				diffs = append(diffs, fmt.Sprintf("%s: the page lacks %q", at, name))
			}
		}
		for name := range w {
			if _, ok := g[name]; !ok {
				diffs = append(diffs, fmt.Sprintf("%s: the page has %q, the answer has not", at, name))
				continue
			}
			diffs = append(diffs, shapes(at+" ."+name, w[name], g[name])...)
		}
	case []any:
		g, ok := got.([]any)
		switch {
		case !ok || (len(w) > 0) != (len(g) > 0):
			return []string{fmt.Sprintf("%s: the page has a list of %d, the answer %v", at, len(w), got)}
		case len(w) > 0:
			return shapes(at+"[0]", w[0], g[0])
		}
	default:
		if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
			diffs = append(diffs, fmt.Sprintf("%s: the page has %v, the answer %v", at, want, got))
		}
	}
	return diffs
}
