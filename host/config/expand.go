package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxSecretFile is the most bytes of a secret's file: enough for any key or certificate.
const maxSecretFile = 64 << 10

// expandEnv replaces ${NAME} by the environment's value and $$ by a dollar.
func expandEnv(s string, getenv func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		head, tail, found := strings.Cut(s, "$")
		b.WriteString(head)
		if !found {
			return b.String(), nil
		}
		if strings.HasPrefix(tail, "$") {
			b.WriteByte('$')
			s = tail[1:]
			continue
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(tail, "{"), "}")
		if !strings.HasPrefix(tail, "{") || !closed || !isEnvName(name) {
			return "", errors.New("a $ stands before {NAME}, or is doubled; write ${NAME} for the environment's value, $$ for a dollar")
		}
		value, ok := getenv(name)
		if !ok {
			return "", fmt.Errorf("the environment has no %s; set it, or write $${%s} for the text itself", name, name)
		}
		b.WriteString(value)
		s = rest
	}
}

// isEnvName tells whether s is a portable environment variable's name.
func isEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// resolveSecret reads what env:NAME or file:PATH refers to, paths relative to dir. No error
// of it shows a value, nor the reference itself where it may be one.
func resolveSecret(ref, dir string, getenv func(string) (string, bool)) (string, error) {
	kind, name, _ := strings.Cut(ref, ":")
	var value string
	switch {
	case kind == "env" && isEnvName(name):
		v, ok := getenv(name)
		if !ok {
			return "", fmt.Errorf("the environment has no %s, which env:%s asks for", name, name)
		}
		value = v
	case kind == "file" && name != "":
		v, err := readSecret(within(dir, name))
		if err != nil {
			return "", err
		}
		value = v
	default:
		return "", errors.New("a secret is not written here but referred to; write env:NAME or file:PATH")
	}
	if value == "" {
		return "", fmt.Errorf("%s:%s is empty", kind, name)
	}
	return value, nil
}

// readSecret reads a small regular file, without its last line's end.
func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err // names the path
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxSecretFile {
		return "", fmt.Errorf("%s is over %s", path, FormatSize(maxSecretFile))
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

// within makes a path of the file absolute.
func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}
