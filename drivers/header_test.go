package drivers_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers"
)

func TestHeaderGet(t *testing.T) {
	h := drivers.Header{"X-Two": {"1", "2"}, "x-case": {"lower"}, "X-CASE": {"upper"}, "X-None": {}, "X-Empty": {""}}
	for _, c := range []struct {
		name, want string
		ok         bool
	}{
		{"X-Two", "1", true},
		{"x-two", "1", true},
		{"x-case", "lower", true}, // the very spelling comes first
		{"X-Case", "upper", true}, // then the smallest
		{"X-None", "", false},
		{"X-Empty", "", true},
		{"absent", "", false},
	} {
		if got, ok := h.Get(c.name); got != c.want || ok != c.ok {
			t.Errorf("Get(%q) = %q, %t, want %q, %t", c.name, got, ok, c.want, c.ok)
		}
	}
	if _, ok := drivers.Header(nil).Get("a"); ok {
		t.Error("a nil header has a value")
	}
}

func TestHeaderSetDelNames(t *testing.T) {
	h := drivers.Header{"x-case": {"1"}, "X-CASE": {"2"}, "Other": {"3"}}
	h.Set("X-Case", "new")
	if got := h.Names(); !slices.Equal(got, []string{"Other", "X-Case"}) {
		t.Errorf("names %q after Set", got)
	}
	if v, _ := h.Get("x-case"); v != "new" {
		t.Errorf("value %q after Set", v)
	}
	h.Del("OTHER")
	h.Del("absent")
	if got := h.Names(); !slices.Equal(got, []string{"X-Case"}) {
		t.Errorf("names %q after Del", got)
	}
}

func TestHeaderClone(t *testing.T) {
	h := drivers.Header{"A": {"1", "2"}}
	c := h.Clone()
	c["A"][0] = "changed"
	c.Set("B", "new")
	if v, _ := h.Get("A"); v != "1" || len(h) != 1 {
		t.Errorf("the original became %v", h)
	}
	if drivers.Header(nil).Clone() == nil {
		t.Error("the clone of nil is nil")
	}
}

func TestHeaderValidate(t *testing.T) {
	for _, h := range []drivers.Header{
		nil,
		{"X-A": {"", "grüße 🎉", "a\tb", "a: b, c; d=\"e\""}, "!#$%&'*+-.^_`|~09azAZ": {"x"}, "Empty": {}},
	} {
		if err := h.Validate(); err != nil {
			t.Errorf("%v: %v", h, err)
		}
	}
	for _, c := range []struct {
		name, value, want string
	}{
		{"", "v", `header "": a name has`},
		{"a b", "v", `header "a b": a name has`},
		{"a:b", "v", `header "a:b": a name has`},
		{"ü", "v", `header "ü": a name has`},
		{"a\n", "v", `header "a\n": a name has`},
		{"A", "a\nb", `header "A": the value has a control character`},
		{"A", "a\x00", `header "A": the value has a control character`},
		{"A", "\x7f", `header "A": the value has a control character`},
		{"A", "\xff", `header "A": the value is not UTF-8`},
		{"A", " a", `header "A": the value begins or ends with a space`},
		{"A", "a\t", `header "A": the value begins or ends with a space`},
	} {
		err := drivers.Header{"Fine": {"x"}, c.name: {"ok", c.value}}.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %q: %v, want %s", c.name, c.value, err, c.want)
		}
	}
	// Of several, always the same one is named.
	for range 20 {
		err := drivers.Header{"C": {"\n"}, "A": {"\n"}, "B": {"\n"}}.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), `header "A"`) {
			t.Fatalf("named %v, want the first", err)
		}
	}
}
