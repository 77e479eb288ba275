//go:build wasip1

// A command in plain Go, for the engine's tests. Stdin chooses.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"os"
)

func main() {
	in, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch string(in) {
	case "panic":
		panic("boom")
	case "hog":
		for hog := [][]byte(nil); ; {
			hog = append(hog, make([]byte, 1<<20))
		}
	case "flood":
		line := bytes.Repeat([]byte{'x'}, 1<<20)
		for range 1024 {
			os.Stdout.Write(line)
		}
	case "later":
		fmt.Fprintln(os.Stderr, "not yet")
		os.Exit(11 | 60<<8)
	case "random":
		fmt.Print(rand.Int63())
	case "files":
		_, err := os.ReadDir("/")
		fmt.Print(err)
	default:
		fmt.Printf("%s %s", os.Getenv("GUESTHAND_JOB"), bytes.ToUpper(in))
	}
}
