package rewrite_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

//go:generate sh -c "for f in testdata/*.wat; do wat2wasm --debug-names $DOLLAR{f} -o $DOLLAR{f%.wat}.wasm; done"

var errDepth = errors.New("call depth")

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// modules returns the test modules by file name.
func modules(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.wasm")
	if err != nil || len(names) == 0 {
		t.Fatalf("no modules: %v", err)
	}
	found := map[string][]byte{}
	for _, n := range names {
		found[filepath.Base(n)] = read(t, filepath.Base(n))
	}
	return found
}

var buildGo = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "goguest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "guest.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", out, "./testdata/goguest")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.New(string(text))
	}
	return os.ReadFile(out)
})

func goGuest(t testing.TB) []byte {
	t.Helper()
	wasm, err := buildGo()
	if err != nil {
		t.Fatal(err)
	}
	core, _, err := rewrite.Strip(wasm)
	if err != nil {
		t.Fatal(err)
	}
	return core
}

// goOptions are those of all tests with the Go guest.
var goOptions = rewrite.Options{Every: 100, MaxDepth: 10000}

func meter(t testing.TB, wasm []byte, o rewrite.Options) []byte {
	t.Helper()
	out, err := rewrite.Meter(wasm, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// host is what test modules run in.
type host struct {
	rt     wazero.Runtime
	yields int
}

// compiled spares the tests compiling the Go guest again: it takes a second each time.
var compiled = wazero.NewCompilationCache()

func newHost(t testing.TB, c wazero.RuntimeConfig) *host {
	t.Helper()
	h := &host{rt: wazero.NewRuntimeWithConfig(t.Context(), c.WithCompilationCache(compiled))}
	t.Cleanup(func() { h.rt.Close(context.WithoutCancel(t.Context())) })
	wasi_snapshot_preview1.MustInstantiate(t.Context(), h.rt)
	_, err := h.rt.NewHostModuleBuilder(rewrite.YieldModule).
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(h.yield), nil, nil).
		Export(rewrite.YieldName).
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(
		func(context.Context, api.Module, []uint64) { panic(errDepth) }), nil, nil).
		Export(rewrite.DepthName).
		Instantiate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// env, as a module so that it can export a global.
	if _, err := h.rt.InstantiateWithConfig(t.Context(), envModule,
		wazero.NewModuleConfig().WithName("env")); err != nil {
		t.Fatal(err)
	}
	return h
}

// envModule exports twice: (i32) -> (i32) and base, an i32 of 1000.
var envModule = slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
	[]byte{1, 6, 1, 0x60, 1, 0x7f, 1, 0x7f},
	[]byte{3, 2, 1, 0},
	[]byte{6, 7, 1, 0x7f, 0, 0x41, 0xe8, 0x07, 0x0b},
	[]byte{7, 16, 2, 5}, []byte("twice"), []byte{0, 0, 4}, []byte("base"), []byte{3, 0},
	[]byte{10, 9, 1, 7, 0, 0x20, 0, 0x20, 0, 0x6a, 0x0b})

func (h *host) yield(ctx context.Context, _ api.Module, _ []uint64) {
	h.yields++
	if err := ctx.Err(); err != nil {
		panic(err)
	}
}

func (h *host) start(t testing.TB, wasm []byte) api.Module {
	t.Helper()
	m, err := h.rt.InstantiateWithConfig(t.Context(), wasm,
		wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// optionSets are what the differential tests use: a yield at every charge, few, and no
// depth.
var optionSets = []rewrite.Options{
	{Every: 1, MaxDepth: 1000},
	{Every: 7},
	{MaxDepth: 10000},
}

func TestMeterKeepsResults(t *testing.T) {
	values := []uint64{0, 1, 2, 5, 63, 100, 0x1234, 0xffffffff, 1 << 40, 0x8000000000000000}
	for name, wasm := range modules(t) {
		if name == "hostile.wasm" || name == "speed.wasm" {
			continue
		}
		for _, o := range optionSets {
			t.Run(name, func(t *testing.T) {
				h := newHost(t, wazero.NewRuntimeConfig())
				plain, metered := h.start(t, wasm), h.start(t, meter(t, wasm, o))
				for _, export := range slices.Sorted(maps.Keys(plain.ExportedFunctionDefinitions())) {
					for i := range values {
						args := make([]uint64, len(plain.ExportedFunction(export).Definition().ParamTypes()))
						for j := range args {
							args[j] = values[(i+3*j)%len(values)]
						}
						compare(t, plain, metered, export, args)
					}
				}
				if o.Every == 1 && h.yields == 0 {
					t.Error("never yielded")
				}
			})
		}
	}
}

// compare calls the export in both modules and compares results, errors, memory and
// globals.
func compare(t *testing.T, plain, metered api.Module, export string, args []uint64) {
	t.Helper()
	want, wantErr := plain.ExportedFunction(export).Call(t.Context(), args...)
	got, gotErr := metered.ExportedFunction(export).Call(t.Context(), args...)
	if firstLine(wantErr) != firstLine(gotErr) || !slices.Equal(want, got) {
		t.Errorf("%s%x: got %x, %v; want %x, %v", export, args, got, gotErr, want, wantErr)
	}
	for _, g := range []string{"g", "started"} {
		if p := plain.ExportedGlobal(g); p != nil && p.Get() != metered.ExportedGlobal(g).Get() {
			t.Errorf("%s%x: global %s is %v, want %v", export, args, g, metered.ExportedGlobal(g), p)
		}
	}
	if p := plain.ExportedMemory("memory"); p != nil {
		a, _ := p.Read(0, p.Size())
		b, _ := metered.ExportedMemory("memory").Read(0, metered.ExportedMemory("memory").Size())
		if !bytes.Equal(a, b) {
			t.Fatalf("%s%x: memories differ", export, args)
		}
	}
}

func firstLine(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func TestMeterKeepsResultsOfGo(t *testing.T) {
	wasm := goGuest(t)
	h := newHost(t, wazero.NewRuntimeConfig())
	plain := h.start(t, wasm)
	metered := h.start(t, meter(t, wasm, goOptions))
	compare(t, plain, metered, "json_work", nil)
	for _, n := range []uint64{1, 200} {
		compare(t, plain, metered, "sum", []uint64{n})
	}
	if h.yields == 0 {
		t.Error("never yielded")
	}
}

func TestStrip(t *testing.T) {
	core := meter(t, read(t, "memory.wasm"), rewrite.Options{}) // without custom sections
	section := func(name, data string) []byte {
		return slices.Concat([]byte{0, byte(1 + len(name) + len(data)), byte(len(name))},
			[]byte(name), []byte(data))
	}
	noisy := slices.Concat(core[:8], section("a", "one"), core[8:], section("b", ""), section("a", "two"))
	got, sections, err := rewrite.Strip(noisy)
	if err != nil || !bytes.Equal(got, core) {
		t.Fatalf("Strip changed the module: %v", err)
	}
	want := map[string]string{"a": "one", "b": ""}
	if len(sections) != len(want) {
		t.Errorf("sections %q", sections)
	}
	for name, data := range want {
		if b, ok := sections[name]; !ok || string(b) != data {
			t.Errorf("section %s is %q, want %q", name, b, data)
		}
	}
	again, sections, err := rewrite.Strip(core)
	if err != nil || !bytes.Equal(again, core) || len(sections) != 0 {
		t.Errorf("Strip of a bare module: %d sections, %v", len(sections), err)
	}
}
