package config_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/config"
)

func sidecar(t *testing.T, text string, trusted bool) *config.Sidecar {
	t.Helper()
	s, err := config.ParseSidecar("plugins/resize.toml", []byte(text), trusted)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// config.toml wins over the sidecar key by key, the sidecar over the defaults.
func TestHandlerMerge(t *testing.T) {
	c := parse(t, minimal+"[limits]\ntimeout = \"7s\"\nerror = \"1KiB\"\n[handlers.resize]\ntimeout = \"1m\"\nconcurrency = 0\n"+
		"rate = \"none\"\nretry = { max_attempts = 9 }\nconfig = { a = \"operator\", b = \"operator\" }\n")
	s := sidecar(t, "timeout = \"2m\"\nmemory = \"128MiB\"\nconcurrency = 4\nrate = \"5/s\"\ninstances = \"fresh\"\n"+
		"retry = { max_attempts = 2, max_delays = 3 }\n", false)
	h := handler(t, c, "resize", s)
	want := handler(t, config.Defaults(), "resize", nil)
	want.Timeout, want.Memory, want.Instances, want.Error = time.Minute, 128<<20, "fresh", 1<<10
	want.Config = map[string]string{"a": "operator", "b": "operator"}
	if h.Retry == nil || h.Retry.MaxAttempts != 9 || h.Retry.MaxDelays != 0 {
		t.Errorf("retry %+v, want config.toml's as a whole", h.Retry)
	}
	h.Retry = nil
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v, want %+v", h, want)
	}
	if other := handler(t, c, "other", nil); other.Timeout != 7*time.Second || other.Config != nil {
		t.Errorf("another job: %+v, want the defaults of [limits]", other)
	}
}

// What Handler returns is the caller's own.
func TestHandlerIsACopy(t *testing.T) {
	c := parse(t, minimal+"[handlers.resize]\nretry = {}\nconfig = { a = \"1\" }\n")
	h := handler(t, c, "resize", nil)
	h.Config["a"], h.Retry.MaxAttempts = "2", 99
	if again := handler(t, c, "resize", nil); again.Config["a"] != "1" || again.Retry.MaxAttempts != 3 {
		t.Errorf("the configuration changed: %+v", again)
	}
}

func TestSidecarRefused(t *testing.T) {
	t.Setenv("GUESTHAND_TEST", "hunter2")
	for text, want := range map[string]string{
		"secrets = { A = \"env:HOME\" }\nconfig = { a = \"b\" }\nhttp = {}\nkv = {}\nsend = []": "5 of: grants something, so it is set in config.toml only, under [handlers.resize]",
		"payload = \"1GiB\"\nsha256 = \"x\"":                                                    "2 of: is set in config.toml only",
		"timeot = \"1s\"":                                                                       "1 of: unknown key; did you mean timeout?",
		"timeout = \"${GUESTHAND_TEST}\"":                                                       "1 of: the environment is not read here",
		"timeout = \"soon\"\nretry = 3":                                                         "2 of: ; write",
		"timeout = ":                                                                            "1 of: syntax: ",
	} {
		_, err := config.ParseSidecar("plugins/resize.toml", []byte(text), false)
		var bad *config.Error
		if !errors.As(err, &bad) {
			t.Errorf("%q: got %v, want an *Error", text, err)
			continue
		}
		count, sentence, _ := strings.Cut(want, " of: ")
		if len(bad.Issues) != int(count[0]-'0') || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %d issues, want %s:\n%v", text, len(bad.Issues), count, err)
		}
		for i, issue := range bad.Issues {
			if issue.File != "plugins/resize.toml" || issue.Line != i+1 || !strings.Contains(issue.Text, sentence) {
				t.Errorf("%q: got %v, want %q on line %d", text, issue, sentence, i+1)
			}
		}
	}
}

func TestSidecarTrusted(t *testing.T) {
	t.Setenv("GUESTHAND_TEST", "from env")
	text := "secrets = { A = \"env:GUESTHAND_TEST\" }\nconfig = { a = \"${GUESTHAND_TEST}\", b = \"sidecar\" }\n"
	s := sidecar(t, text, true)
	c := parse(t, "trust_sidecars = true\n"+minimal+"[handlers.resize]\nconfig = { b = \"operator\" }\n")
	h := handler(t, c, "resize", s)
	if h.Secrets["A"] != "from env" || !reflect.DeepEqual(h.Config, map[string]string{"a": "from env", "b": "operator"}) {
		t.Errorf("got %v and %v", map[string]string(h.Secrets), h.Config)
	}
	web, err := config.ParseSidecar("resize.toml", []byte(`http = { allow = ["api.example.com"] }`), true)
	if err != nil {
		t.Fatal(err)
	}
	if h := handler(t, c, "resize", web); h.HTTP == nil || len(h.HTTP.Allow) != 1 {
		t.Errorf("http: %+v", h.HTTP)
	}
	// Trust may be withdrawn while the sidecar is loaded.
	if _, err := parse(t, minimal).Handler("resize", s); err == nil || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("without trust: %v", err)
	}
}

func TestSidecarCeiling(t *testing.T) {
	s := sidecar(t, "\nmemory = \"1GiB\"\n", false)
	_, err := parse(t, minimal).Handler("resize", s)
	want := "plugins/resize.toml:2: memory: 1GiB is over this host's ceiling of 256MiB (limits.max_memory); " +
		"ask for less, or let config.toml set it under [handlers.resize]"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if h := handler(t, parse(t, minimal+"[limits]\nmax_memory = \"1GiB\"\n"), "resize", s); h.Memory != 1<<30 {
		t.Errorf("with a higher ceiling: %d", h.Memory)
	}
	if h := handler(t, parse(t, minimal+"[handlers.resize]\nmemory = \"2GiB\"\n"), "resize", s); h.Memory != 2<<30 {
		t.Errorf("config.toml's own memory: %d", h.Memory)
	}
}
