package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/guesthand/guesthand"

// source is what the rules look at in one Go file.
type source struct {
	file    string // slash path from the root
	pkg     string
	imports []string
	inits   int // functions named init
}

// TestImports holds every Go file, whatever its build tags, to the import rule.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range s.imports {
			if rule := importBreaks(s.file, imp); rule != "" {
				t.Errorf("%s imports %s: %s", s.file, imp, rule)
			}
		}
		if rule := shapeBreaks(s); rule != "" {
			t.Errorf("%s: %s", s.file, rule)
		}
	}
}

// TestImportRule shows that the rule refuses what it should and nothing else.
func TestImportRule(t *testing.T) {
	const (
		nats  = "github.com/nats-io/nats.go/jetstream"
		serve = "github.com/nats-io/nats-server/v2/server"
		mem   = module + "/drivers/memdriver"
	)
	for _, tc := range []struct {
		file, imp string
		ok        bool
	}{
		{"abi/abi.go", "fmt", true},
		{"abi/abi.go", module + "/drivers", false},
		{"abi/abi.go", "github.com/google/uuid", false},
		{"abi/abi_test.go", "pgregory.net/rapid", true},
		{"drivers/driver.go", module + "/abi", true},
		{"drivers/driver.go", module + "/host/policy", false},
		{"drivers/driver.go", "github.com/google/uuid", false},
		{"drivers/natsdriver/nats.go", nats, true},
		{"drivers/embeddeddriver/open.go", serve, true},
		{"drivers/embeddeddriver/open.go", module + "/drivers/natsdriver", true},
		{"drivers/natsdriver/nats.go", mem, false},
		{"drivers/natsdriver/nats.go", module + "/host", false},
		{"drivers/memdriver/mem.go", nats, false},
		{"drivers/memdriver/conformance_test.go", module + "/drivers/drivertest", true},
		{"drivers/memdriver/mem.go", module + "/drivers/drivertest", false},
		{"host/queue.go", module + "/drivers", true},
		{"host/queue.go", module + "/host/policy", true},
		{"host/queue.go", mem, false},
		{"host/queue_test.go", mem, true},
		{"host/queue_test.go", module + "/drivers/natsdriver", false},
		{"host/queue_test.go", nats, false},
		{"host/queue.go", module + "/cmd/guesthand", false},
		{"host/policy/policy.go", module + "/host/engine", false},
		{"host/policy/policy.go", "github.com/google/uuid", false},
		{"host/engine/run.go", "github.com/tetratelabs/wazero", true},
		{"cmd/guesthand/run.go", mem, true},
		{"cmd/guesthand/run.go", nats, false},
		{"cmd/guesthand/run_test.go", nats, true},
		{"plugins/examples/orders/main.go", "encoding/json", true},
		{"plugins/examples/orders/main.go", module + "/host", false},
		{"plugins/examples/examplestest/orders_test.go", module + "/host", true},
		{"host/queue.go", module + "/host/hosttest", false},
	} {
		rule := importBreaks(tc.file, tc.imp)
		if (rule == "") != tc.ok {
			t.Errorf("%s importing %s: allowed is %v, want %v (%s)", tc.file, tc.imp, rule == "", tc.ok, rule)
		}
	}
}

// brokerClients are the modules of the brokers, and the packages that may import them. A
// driver adds its line here.
var brokerClients = map[string][]string{
	"github.com/nats-io/":                 {"drivers/natsdriver", "drivers/embeddeddriver"},
	"github.com/rabbitmq/":                {"drivers/rabbitdriver"},
	"github.com/redis/":                   {"drivers/redisdriver"},
	"github.com/jackc/":                   {"drivers/pgdriver"},
	"github.com/aws/":                     {"drivers/sqsdriver"},
	"github.com/cloudflare/cloudflare-go": {"drivers/cfdriver"},
}

// driverUses are the drivers built on another one.
var driverUses = map[string]string{
	"drivers/embeddeddriver": "drivers/natsdriver",
}

// importBreaks names the rule that a file breaks by an import, or "".
func importBreaks(file, imp string) string {
	dir, test := path.Dir(file), strings.HasSuffix(file, "_test.go")
	for client, owners := range brokerClients {
		if strings.HasPrefix(imp, client) && !underAny(dir, owners) && !(test && under(dir, "cmd")) {
			return "only a driver's own package, and tests of the command, import its broker's client"
		}
	}
	own, isOwn := strings.CutPrefix(imp, module+"/")
	if isOwn {
		return ownBreaks(dir, own, test)
	}
	if isStd(imp) || test {
		return ""
	}
	switch {
	case under(dir, "abi"):
		return "abi imports the standard library only"
	case dir == "drivers":
		return "the contract imports abi and the standard library only"
	case under(dir, "host/policy"):
		return "the policy is pure: abi, the contract and the standard library only"
	case under(dir, "plugins"):
		return "a sample handler needs nothing but the standard library and the guest SDK"
	}
	return ""
}

// ownBreaks is importBreaks for this repository's packages: cmd -> host -> {abi, contract}.
func ownBreaks(dir, own string, test bool) string {
	if strings.HasSuffix(own, "test") && !test && !strings.HasSuffix(dir, "test") {
		return "packages named ...test hold what tests share, and are for tests only"
	}
	switch {
	case under(dir, "abi") && !under(own, "abi"):
		return "abi imports the standard library only"
	case dir == "drivers" && !under(own, "abi") && !(test && own == "drivers"):
		return "the contract imports abi and the standard library only"
	case under(dir, "drivers"):
		return driverBreaks(dir, own, test)
	case under(dir, "host/policy") && !underAny(own, []string{"abi", "host/policy"}) && own != "drivers":
		return "the policy is pure: abi, the contract and the standard library only"
	case under(dir, "host"):
		if underAny(own, []string{"abi", "host"}) || own == "drivers" ||
			test && underAny(own, []string{"drivers/memdriver", "drivers/drivertest"}) {
			return ""
		}
		return "the host imports abi and the drivers' contract, and knows no driver by name (its tests: memdriver)"
	case under(dir, "plugins") && !under(own, "abi") && !test && !strings.HasSuffix(dir, "test"):
		return "a sample handler needs nothing but the standard library and the guest SDK"
	}
	return ""
}

func driverBreaks(dir, own string, test bool) string {
	if !underAny(own, []string{"abi", "drivers"}) {
		return "a driver imports abi and the contract, never the host or the command"
	}
	used := driverUses[dir]
	if test || under(own, "abi") || own == "drivers" || under(own, dir) || used != "" && under(own, used) {
		return ""
	}
	return "a driver does not import another driver"
}

// shapeBreaks names the rule that a file breaks by its package's name or by registering
// itself, or "".
func shapeBreaks(s source) string {
	for _, name := range append(strings.Split(path.Dir(s.file), "/"), s.pkg) {
		if slices.Contains([]string{"util", "utils", "common", "types", "pkg", "helpers", "misc"}, name) {
			return "a package is named for what it does, not " + name
		}
	}
	if s.inits > 0 && !strings.HasSuffix(s.file, "_test.go") {
		return "no func init: nothing registers itself, cmd holds the tables"
	}
	return ""
}

// sources parses every Go file of the tree, those of nested modules and testdata left out.
func sources(t *testing.T) []source {
	t.Helper()
	files := treeFiles(t)
	var nested []string
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			nested = append(nested, path.Dir(f))
		}
	}
	var out []source
	for _, f := range files {
		if path.Ext(f) != ".go" || underAny(f, nested) || strings.Contains("/"+f, "/testdata/") {
			continue
		}
		out = append(out, parseSource(t, f))
	}
	if len(out) == 0 {
		t.Fatal("no Go file found")
	}
	return out
}

func parseSource(t *testing.T, file string) source {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse %s: %v", file, err)
	}
	s := source{file: file, pkg: strings.TrimSuffix(tree.Name.Name, "_test")}
	for _, spec := range tree.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatalf("%s: import %s: %v", file, spec.Path.Value, err)
		}
		s.imports = append(s.imports, imp)
	}
	for _, decl := range tree.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			s.inits++
		}
	}
	return s
}

// isStd tells the standard library's packages by their first element, which has no dot.
func isStd(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

// under tells whether a slash path is dir or lies below it.
func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}

func underAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(p, d) })
}
