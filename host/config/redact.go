package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// redacted stands for a value that is never shown.
const redacted = "[redacted]"

// Secrets are resolved values by name. Whatever prints them shows the names only, as long as
// they are not in an unexported field of a struct printed as a whole.
type Secrets map[string]string

func (s Secrets) shown() map[string]string {
	m := make(map[string]string, len(s))
	for name := range s {
		m[name] = redacted
	}
	return m
}

// Format prints names without values, whatever the verb.
func (s Secrets) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "secrets%v", slices.Sorted(maps.Keys(s)))
}

// MarshalJSON is the names without values.
func (s Secrets) MarshalJSON() ([]byte, error) { return json.Marshal(s.shown()) }

// LogValue is the names without values.
func (s Secrets) LogValue() slog.Value { return slog.AnyValue(s.shown()) }

// Format prints the sidecar's file only: fmt cannot ask what is in unexported fields to hide
// itself.
func (s Sidecar) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "sidecar %s", s.File) }

// plainBroker and plainAdmin print as their fields do.
type (
	plainBroker Broker
	plainAdmin  Admin
)

func (b Broker) shown() plainBroker {
	b.Password, b.Token = hide(b.Password), hide(b.Token)
	servers := strings.Split(b.URL, ",")
	for i, server := range servers {
		u, err := url.Parse(strings.TrimSpace(server))
		switch {
		case err != nil:
			servers[i] = redacted
		case u.User != nil:
			// A user alone may be a token.
			u.User = url.User("redacted")
			servers[i] = u.String()
		}
	}
	b.URL = strings.Join(servers, ",")
	return plainBroker(b)
}

// Format prints the broker without its password and what its URL holds of one.
func (b Broker) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), b.shown()) }

// MarshalJSON leaves out what Format does.
func (b Broker) MarshalJSON() ([]byte, error) { return json.Marshal(b.shown()) }

// LogValue leaves out what Format does.
func (b Broker) LogValue() slog.Value { return slog.AnyValue(b.shown()) }

func (a Admin) shown() plainAdmin {
	a.Token = hide(a.Token)
	return plainAdmin(a)
}

// Format prints the section without its token.
func (a Admin) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), a.shown()) }

// MarshalJSON leaves out the token.
func (a Admin) MarshalJSON() ([]byte, error) { return json.Marshal(a.shown()) }

// LogValue leaves out the token.
func (a Admin) LogValue() slog.Value { return slog.AnyValue(a.shown()) }

func hide(s string) string {
	if s == "" {
		return ""
	}
	return redacted
}
