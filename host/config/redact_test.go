package config_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/config"
)

// No way of printing a configuration, or a part of it, shows a secret.
func TestSecretsAreNotShown(t *testing.T) {
	const secret = "hunter2"
	c := parse(t, `trust_sidecars = true
[brokers.x]
driver = "nats"
url = "nats://u:${S}@a:4222,nats://${S}@b"
user = "u"
password = "env:S"
[queues.default]
broker = "x"
[handlers.a]
secrets = { KEY = "env:S" }
[admin]
token = "env:S"
`, "S", secret)
	t.Setenv("S", secret)
	s, err := config.ParseSidecar("a.toml", []byte(`secrets = { OTHER = "env:S" }`), true)
	if err != nil {
		t.Fatal(err)
	}
	h := handler(t, c, "a", s)
	if h.Secrets["KEY"] != secret || h.Secrets["OTHER"] != secret || c.Brokers["x"].Password != secret || c.Admin.Token != secret {
		t.Fatal("a secret was not resolved")
	}
	for name, v := range map[string]any{
		"config": c, "value": *c, "handler": h, "pointer": &h, "secrets": h.Secrets, "broker": c.Brokers["x"],
		"brokers": c.Brokers, "admin": c.Admin, "handlers": c.Handlers, "sidecar": s,
	} {
		var shown bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "% x"} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		shown.Write(b)
		slog.New(slog.NewJSONHandler(&shown, nil)).Info("m", "v", v)
		slog.New(slog.NewTextHandler(&shown, nil)).Info("m", "v", v)
		lower := strings.ToLower(shown.String())
		for _, form := range []string{secret, hex.EncodeToString([]byte(secret)), fmt.Sprintf("% x", secret)} {
			if strings.Contains(lower, form) {
				t.Errorf("%s shows the secret as %q:\n%s", name, form, lower)
			}
		}
	}
	if shown := fmt.Sprintf("%+v", h.Secrets); !strings.Contains(shown, "KEY") {
		t.Errorf("the names are not shown: %s", shown)
	}
}
