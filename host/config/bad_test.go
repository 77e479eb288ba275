package config_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/config"
)

var update = flag.Bool("update", false, "write testdata/bad/*.want from what is reported now")

// env is an environment with nothing else in it.
func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// Every file of testdata/bad is refused with exactly the sentences beside it.
func TestBad(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse("config.toml", data, env("HUNTER", "hunter2", "EMPTY", ""))
			var bad *config.Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want an *Error", err)
			}
			wd, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(bad.Error(), wd, "DIR") + "\n"
			want := strings.TrimSuffix(file, ".toml") + ".want"
			if *update {
				if err := os.WriteFile(want, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			expected, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(expected) {
				t.Errorf("got\n%swant\n%s", got, expected)
			}
			if strings.Contains(got, "hunter2") {
				t.Errorf("a secret's value is shown:\n%s", got)
			}
		})
	}
}
