package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stream string
		ok     bool
		want   []string
		not    []string
	}{
		{
			name: "passed and skipped",
			stream: `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: no broker: install one\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: no broker: install one\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`,
			ok:   true,
			want: []string{"ok  \tp\t0.1s\n", "\n1 passed, 0 failed, 2 skipped\n", "skipped: p: TestB and 1 more: no broker: install one\n"},
			not:  []string{"noise", "PASS"},
		},
		{
			name: "failed",
			stream: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: got 1\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`,
			want: []string{"a_test.go:3: got 1\n", "FAIL\tp\t0.1s\n", "0 passed, 1 failed, 0 skipped"},
		},
		{
			name: "does not build",
			stream: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"pass","Package":"q","Test":"TestQ"}
`,
			want: []string{"p.go:1: undefined: x\n"},
		},
		{
			name: "dies inside a test",
			stream: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"panic: boom\n"}
{"Action":"fail","Package":"p"}
`,
			want: []string{"panic: boom\n"},
		},
		{name: "nothing", stream: "", want: []string{"no test ran"}},
		{name: "not json", stream: "go: no such tool\n", want: []string{"go: no such tool\n", "no test ran"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tc.stream)); err != nil {
				t.Fatal(err)
			}
			if ok := r.finish(); ok != tc.ok {
				t.Errorf("ok is %v, want %v", ok, tc.ok)
			}
			for _, w := range tc.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%q is missing in:\n%s", w, out.String())
				}
			}
			for _, n := range tc.not {
				if strings.Contains(out.String(), n) {
					t.Errorf("%q should not be in:\n%s", n, out.String())
				}
			}
		})
	}
}
