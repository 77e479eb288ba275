package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/config"
)

// Whatever the file holds, it is a configuration or an *Error with a sentence in it, and
// shows nothing of the environment.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, filepath.Join("..", "..", "config.toml")) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("config.toml", data, env("HUNTER", "hunter2"))
		s, serr := config.ParseSidecar("resize.toml", data, false)
		for _, err := range []error{err, serr} {
			var bad *config.Error
			switch {
			case err == nil:
			case !errors.As(err, &bad) || len(bad.Issues) == 0 || bad.Issues[0].Text == "":
				t.Errorf("%#v is no *Error with a text", err)
			case strings.Contains(err.Error(), "hunter2") && !strings.Contains(string(data), "hunter2"):
				t.Errorf("the environment is shown: %v", err)
			}
		}
		if err != nil {
			return
		}
		for name := range c.Queues {
			h, err := c.Handler("resize", s)
			if err != nil {
				continue
			}
			if p := c.Policy(name, h); p.Factor < 1 || h.Timeout <= 0 || h.Memory == 0 {
				t.Errorf("%+v and %+v are out of range", h, p)
			}
		}
	})
}
