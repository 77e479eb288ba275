package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/guesthand/guesthand/drivers"
)

// readPayload reads a --payload: text as it stands, @FILE, or @- for standard input.
func readPayload(arg string) ([]byte, error) {
	file, isFile := strings.CutPrefix(arg, "@")
	switch {
	case !isFile:
		return []byte(arg), nil
	case file == "-":
		return io.ReadAll(os.Stdin)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fail(exitUsage, "a payload that begins with @ names a file; @- is standard input", fmt.Errorf("payload: %w", err))
	}
	return b, nil
}

// readHeaders reads --header K=V flags.
func readHeaders(args []string) (drivers.Header, error) {
	h := drivers.Header{}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, fail(exitUsage, "", fmt.Errorf("header %q: write it as NAME=VALUE", a))
		}
		h[name] = append(h[name], value)
	}
	if err := h.Validate(); err != nil {
		return nil, fail(exitUsage, "", err)
	}
	return h, nil
}
