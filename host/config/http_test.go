package config_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/egress"
)

// certificate is a file with some certificate in it.
func certificate(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const withHTTP = `
[brokers.b]
driver = "memory"
[queues.q]
broker = "b"
retry = {}
[handlers.a]
http = %s
`

func parseHTTP(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("config.toml", fmt.Appendf(nil, withHTTP, text), env("TOKEN", "Bearer hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func target(t *testing.T, s string) egress.Target {
	t.Helper()
	to, err := egress.ParseTarget(s)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestHTTP(t *testing.T) {
	file := certificate(t)
	c := parseHTTP(t, `{ allow = ["API.example.com", "http://10.1.2.3:8080"], allow_private = ["10.1.0.0/16", "127.0.0.1"],
		inject = { "api.example.com" = { authorization = "env:TOKEN" } }, roots = `+strconv.Quote(file)+`,
		request = "1MiB", response = "2MiB", calls = 3, connections = 4, timeout = "5s" }`)
	h := handler(t, c, "a", nil).HTTP
	if h == nil || len(h.Allow) != 2 || h.Allow[0] != target(t, "api.example.com") || h.Allow[1] != target(t, "http://10.1.2.3:8080") {
		t.Fatalf("%+v", h)
	}
	if len(h.Private) != 2 || h.Private[0].String() != "10.1.0.0/16" || h.Private[1].String() != "127.0.0.1/32" {
		t.Errorf("private %v", h.Private)
	}
	want := map[egress.Target]config.Secrets{target(t, "api.example.com"): {"Authorization": "Bearer hunter2"}}
	if !reflect.DeepEqual(h.Inject, want) || h.Pool() == nil || !strings.Contains(h.PEM, "CERTIFICATE") {
		t.Errorf("inject %v, roots %v", h.Inject, h.Roots)
	}
	if h.Request != 1<<20 || h.Response != 2<<20 || h.Calls != 3 || h.Connections != 4 || h.Timeout != 5*time.Second {
		t.Errorf("%+v", h)
	}
	h = handler(t, parseHTTP(t, `{ allow = ["a.example"] }`), "a", nil).HTTP
	if h.Request != 8<<20 || h.Response != 8<<20 || h.Calls != 100 || h.Connections != 100 || h.Timeout != 0 || h.Pool() != nil {
		t.Errorf("defaults %+v", h)
	}
	if other := handler(t, c, "other", nil); other.HTTP != nil {
		t.Errorf("another handler has %+v", other.HTTP)
	}
}

// A value that is injected is not shown, whatever prints the configuration.
func TestHTTPRedacted(t *testing.T) {
	c := parseHTTP(t, `{ allow = ["api.example.com"], inject = { "api.example.com" = { Authorization = "env:TOKEN" } } }`)
	h := handler(t, c, "a", nil)
	text, err := json.Marshal(h)
	if err != nil || !strings.Contains(string(text), `"api.example.com":{"Authorization":"[redacted]"}`) {
		t.Errorf("%s, %v", text, err)
	}
	all := string(text) + fmt.Sprintf("%v %+v %#v %s", h, h, h, h.HTTP.Inject) + fmt.Sprintf("%+v", *h.HTTP)
	if strings.Contains(all, "hunter2") {
		t.Errorf("the value is shown in %s", all)
	}
}

// What a file holds is part of the configuration: read again, it is a change.
func TestHTTPChanges(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	text := `{ allow = ["api.example.com"], inject = { "api.example.com" = { Authorization = ` + strconv.Quote("file:"+token) + ` } } }`
	write := func(s string) *config.Config {
		if err := os.WriteFile(token, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		return parseHTTP(t, text)
	}
	first, same, second := write("one"), write("one"), write("two")
	if applies, restart := config.Diff(first, same); len(applies)+len(restart) > 0 {
		t.Errorf("no change, and yet %v, %v", applies, restart)
	}
	if applies, restart := config.Diff(first, second); len(restart) > 0 || len(applies) != 1 || applies[0] != "handlers.a.http" {
		t.Errorf("changed %v, %v", applies, restart)
	}
}
