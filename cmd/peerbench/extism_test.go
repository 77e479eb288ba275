// Package peerbench_test compares guesthand with other programs: what they answer, and what it
// costs.
package peerbench_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	extism "github.com/extism/go-sdk"
	"github.com/tetratelabs/wazero"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/engine/extismtest"
)

// answer is what a host can see of a call. A call that failed has a code of -1.
type answer struct {
	code      int64
	output    string
	errorText string
}

// oracle is extism/go-sdk with one plug-in.
type oracle struct {
	compiled *extism.CompiledPlugin
	function string
}

func newOracle(t testing.TB, wasm []byte, function string, settings map[string]string, hosts ...string) *oracle {
	t.Helper()
	extism.SetLogLevel(extism.LogLevelInfo)
	manifest := extism.Manifest{
		Wasm: []extism.Wasm{extism.WasmData{Data: wasm}}, Config: settings, AllowedHosts: hosts,
		Memory: &extism.ManifestMemory{MaxPages: 1024, MaxHttpResponseBytes: -1, MaxVarBytes: -1},
	}
	compiled, err := extism.NewCompiledPlugin(t.Context(), manifest,
		extism.PluginConfig{EnableWasi: true, EnableHttpResponseHeaders: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := compiled.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &oracle{compiled: compiled, function: function}
}

func (o *oracle) instance(t testing.TB) *extism.Plugin {
	t.Helper()
	p, err := o.compiled.Instance(context.Background(), extism.PluginInstanceConfig{ModuleConfig: wazero.NewModuleConfig()})
	if err != nil {
		t.Fatal(err)
	}
	p.SetLogger(func(extism.LogLevel, string) {})
	return p
}

// calls is what one instance answers to each input in turn. A call that failed ends it, since
// what comes after one is nobody's promise.
func (o *oracle) calls(t testing.TB, inputs []string) []answer {
	t.Helper()
	p := o.instance(t)
	defer p.Close(context.Background())
	var answers []answer
	for _, input := range inputs {
		code, output, err := p.Call(o.function, []byte(input))
		text := p.GetError()
		if err != nil && (text == "" || err.Error() != text) {
			return append(answers, answer{code: -1, errorText: text})
		}
		answers = append(answers, answer{code: int64(code), output: string(output), errorText: text})
	}
	return answers
}

// guesthand is our engine with one plug-in.
func guesthand(t testing.TB, wasm []byte, cfg engine.Config) *engine.Module {
	t.Helper()
	e, err := engine.New(engine.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	m, err := e.Load(t.Context(), wasm, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ours is what our engine answers, with what it makes of a code taken back.
func ours(m *engine.Module, logger *slog.Logger, inputs []string) []answer {
	var answers []answer
	for _, input := range inputs {
		r := m.Run(&engine.Call{Input: engine.Input{Payload: []byte(input), Logger: logger}})
		if r.End.Cause != abi.Returned {
			return append(answers, answer{code: -1, errorText: r.End.Text})
		}
		code := int64(r.End.Outcome.Code) | int64(r.End.Outcome.Delay/time.Second)<<8
		text, _ := strings.CutPrefix(r.End.Text, r.End.Outcome.Text)
		answers = append(answers, answer{code: code, output: string(r.Output), errorText: strings.TrimPrefix(text, ": ")})
	}
	return answers
}

// difference tells how an answer of ours differs from Extism's; "" where it does not. Of a code
// the host sees all 32 bits, and we what it means: of bits that mean nothing, only the lowest 8.
// An error text beside code 0 is a failed call to both, and a retry to us.
func difference(got, want answer) string {
	outcome := abi.DecodeExit(uint32(want.code))
	switch {
	case want.code < 0 || got.code < 0:
		if got.code < 0 && want.code < 0 && strings.HasPrefix(got.errorText, want.errorText) {
			return ""
		}
	case got.output != want.output || got.errorText != want.errorText:
	case want.code == 0 && want.errorText != "":
		if got.code == int64(abi.CodeRetry) {
			return ""
		}
	case got.code == int64(outcome.Code)|int64(outcome.Delay/time.Second)<<8:
		return ""
	}
	return fmt.Sprintf("got  %+v\nwant %+v", got, want)
}

func compare(t *testing.T, got, want []answer) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d answers, want %d", len(got), len(want))
		return
	}
	for i := range want {
		if d := difference(got[i], want[i]); d != "" {
			t.Errorf("call %d:\n%s", i, d)
		}
	}
}

var infoLogger = slog.New(slog.NewTextHandler(io.Discard, nil))

// Random orders of kernel calls are answered as by Extism, several messages in a row on one
// instance.
func TestExtismKernelLikeTheSDK(t *testing.T) {
	o := newOracle(t, extismtest.Interpreter, "run", extismtest.Settings)
	for mode, inARow := range map[engine.Instances]int{engine.Fresh: 1, engine.Reuse: 3} {
		// Variables live as long as an instance: as many calls as the oracle's gets.
		m := guesthand(t, extismtest.Interpreter, engine.Config{Instances: mode, Recycle: inARow, Values: extismtest.Settings})
		failed := 0
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 1))
			var inputs []string
			for range inARow {
				inputs = append(inputs, string(extismtest.Random(r)))
			}
			want := o.calls(t, inputs)
			if want[len(want)-1].code < 0 {
				failed++
			}
			compare(t, ours(m, infoLogger, inputs), want)
			if t.Failed() {
				t.Fatalf("seed %d, %s: %q", seed, mode, inputs)
			}
		}
		if failed == 0 || failed == 300 {
			t.Errorf("%s: %d of 300 ended in a failed call", mode, failed)
		}
	}
}

// The plug-in made with the development kit.
func TestExtismPluginLikeTheSDK(t *testing.T) {
	inputs := []string{
		"upper\nhello", "upper\n", "config\ncolor", "config\nlong", "config\nnone", "config\nempty", "count", "count", "count",
		"forget", "count", "log\nhello", "log\n", "wait\nbusy", "later\nsoon", "permanent\nbad \u5927", "mistaken\noops", "what",
		"upper\n" + strings.Repeat("a long text ", 20000), "upper\nu\u0308ber", "abort\nboom",
	}
	m := guesthand(t, extismtest.Plugin, engine.Config{Instances: engine.Reuse, Values: extismtest.Settings})
	compare(t, ours(m, infoLogger, inputs), newOracle(t, extismtest.Plugin, "handle", extismtest.Settings).calls(t, inputs))
	for _, input := range []string{"http\nhttps://example.com/", "http\n", "http\n%"} { // not allowed, or none
		m := guesthand(t, extismtest.Plugin, engine.Config{})
		want := newOracle(t, extismtest.Plugin, "handle", nil).calls(t, []string{input})
		got := ours(m, infoLogger, []string{input})
		if got[0].code >= 0 || want[0].code >= 0 {
			t.Errorf("%q: got %+v, want %+v", input, got, want)
		}
	}
}

// direct makes requests as they are.
type direct struct{}

func (direct) Do(ctx context.Context, r egress.Request) (*egress.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, strings.NewReader(string(r.Body)))
	if err != nil {
		return nil, err
	}
	req.Header = r.Header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	return &egress.Response{Status: resp.StatusCode, Header: resp.Header, Body: body}, errors.Join(err, resp.Body.Close())
}

// Requests and what comes of them, with a client that allows everything.
func TestExtismHTTPLikeTheSDK(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header()["Date"] = nil
		w.Header()["X-Tag"] = []string{"one", "two"}
		w.WriteHeader(map[string]int{"/made": 201, "/busy": 503, "/empty": 200}[r.URL.Path])
		if r.URL.Path != "/empty" {
			fmt.Fprintf(w, "%s %s %s %q", r.Method, r.URL.Path, r.Header.Get("X-One"), body)
		}
	}))
	defer server.Close()
	var inputs []string
	for _, request := range []string{
		`{"url":"%s/made"}`, `{"url":"%s/made","method":"post","headers":{"x-one":"1"}}`, `{"url":"%s/busy"}`, `{"url":"%s/empty"}`, `{"url":"%s/made","headers":null,"more":1}`,
	} {
		s := extismtest.Script{}.Text(1, fmt.Sprintf(request, server.URL)).Text(2, "body")
		inputs = append(inputs, string(s.Op('h', 0, 1, 2).Op('l', 1).Op('l', 2).Op('H').Op('K').Trace().Return(0)))
	}
	m := guesthand(t, extismtest.Interpreter, engine.Config{HTTP: direct{}})
	compare(t, ours(m, infoLogger, inputs), newOracle(t, extismtest.Interpreter, "run", nil, "127.0.0.1").calls(t, inputs))
}

// Offsets outside of every memory, and other things that end a call.
func TestExtismFailuresLikeTheSDK(t *testing.T) {
	var s extismtest.Script
	o := newOracle(t, extismtest.Interpreter, "run", nil)
	m := guesthand(t, extismtest.Interpreter, engine.Config{Instances: engine.Fresh})
	for name, script := range map[string]extismtest.Script{
		"load":              s.Set(0, 0xfffffff0).Op('q', 0),
		"store":             s.Set(0, 0xfffffff0).Op('Q', 0, 1),
		"trap":              s.Op('!'),
		"error text":        s.Text(0, "no luck").Op('E', 0).Op('!'),
		"large variable":    s.Text(0, "n").Set(2, 1<<20).Op('a', 1, 2).Op('V', 0, 1),
		"invalid request":   s.Text(0, "{").Op('h', 1, 0, 2),
		"a block too large": s.Set(0, 1<<31).Op('a', 1, 0).Trace(),
		"zero":              s.Op('f', 0).Op('l', 0).Op('u', 0).Op('E', 0).Op('c', 1, 0).Trace(),
		"level":             s.Op('G').Trace(),
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, ours(m, infoLogger, []string{string(script)}), o.calls(t, []string{string(script)}))
		})
	}
}

// BenchmarkExtism runs a plug-in on the same input by turns with our engine and with
// extism/go-sdk, on one instance and on a fresh one for each call, and reports how many times
// as long the SDK's calls took. Ours always have a deadline, which costs the SDK a good deal.
func BenchmarkExtism(b *testing.B) {
	for _, mode := range []engine.Instances{engine.Reuse, engine.Fresh} {
		for _, timeout := range []uint64{30000, 0} {
			name := map[uint64]string{0: "without", 30000: "with"}[timeout]
			b.Run(fmt.Sprintf("%s/sdk-%s-deadline", mode, name), func(b *testing.B) {
				input := []byte("upper\n" + strings.Repeat("hello ", 16))
				m := guesthand(b, extismtest.Plugin, engine.Config{Instances: mode})
				theirs := sdkCall(b, mode, timeout)
				var oursTook, theirsTook time.Duration
				var c engine.Call
				for b.Loop() {
					start := time.Now()
					c.Reset(engine.Input{Payload: input})
					if r := m.Run(&c); r.End.Cause != abi.Returned {
						b.Fatal(r.End)
					}
					middle := time.Now()
					theirs(input)
					oursTook += middle.Sub(start)
					theirsTook += time.Since(middle)
				}
				b.ReportMetric(0, "ns/op") // of both together, which means nothing
				b.ReportMetric(float64(oursTook)/float64(b.N), "guesthand-ns")
				b.ReportMetric(float64(theirsTook)/float64(b.N), "sdk-ns")
				b.ReportMetric(float64(theirsTook)/float64(oursTook), "times")
			})
		}
	}
}

// sdkCall is a call with extism/go-sdk; a timeout of 0 is none.
func sdkCall(b *testing.B, mode engine.Instances, timeout uint64) func(input []byte) {
	b.Helper()
	compiled, err := extism.NewCompiledPlugin(context.Background(), extism.Manifest{
		Wasm: []extism.Wasm{extism.WasmData{Data: extismtest.Plugin}}, Timeout: timeout,
	}, extism.PluginConfig{EnableWasi: true}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := compiled.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	o := oracle{compiled: compiled}
	p := o.instance(b)
	return func(input []byte) {
		if mode == engine.Fresh {
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
			p = o.instance(b)
		}
		if code, _, err := p.Call("handle", input); code != 0 || err != nil {
			b.Fatal(code, err)
		}
	}
}
