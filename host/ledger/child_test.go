package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/ledger"
)

// childRole in the environment makes the test binary play a part in another process.
const childRole, childPath = "LEDGER_TEST_ROLE", "LEDGER_TEST_PATH"

func child(role string) {
	l, err := ledger.Open(context.Background(), ledger.Options{Path: os.Getenv(childPath)})
	if err == nil {
		switch role {
		case "write":
			err = writeForEver(l)
		case "full":
			err = fillDisk(l)
		}
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// writeForEver says after each flush how many rows are in the file for sure.
func writeForEver(l *ledger.Ledger) error {
	for n := 0; ; {
		for range 300 {
			l.Record(success(fmt.Sprint("s", n)))
			l.Record(failure(fmt.Sprint("f", n)))
			n++
		}
		if err := l.Flush(context.Background()); err != nil {
			return err
		}
		fmt.Println("flushed", n)
	}
}

// startChild starts the test binary in a role; its output comes line by line.
func startChild(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// A host killed while it writes loses at most what was not flushed, and the next one goes on.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	total := 0
	for round := range 3 {
		cmd, lines := startChild(t, "write", path)
		flushed := 0
		for flushed < 1500 && lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "flushed %d", &flushed); err != nil {
				t.Fatalf("child says %q", lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child ended by itself")
		}
		total += flushed
		l := open(t, func(o *ledger.Options) { o.Path = path })
		for _, outcome := range []string{"success", "retry"} {
			if got := runs(t, l, ledger.Filter{Outcome: outcome, Limit: 1 << 30}); len(got) < total {
				t.Errorf("round %d: %d of %d rows with %s", round, len(got), total, outcome)
			}
		}
		l.Record(failure("after"))
		if got := runs(t, l, ledger.Filter{ID: "after"}); len(got) != round+1 {
			t.Errorf("round %d: %d rows written afterwards", round, len(got))
		}
		closed(t, l)
	}
	if list, err := filepath.Glob(path + ".corrupt*"); err != nil || len(list) > 0 {
		t.Errorf("set aside: %v, %v", list, err)
	}
}

// A full disk loses nothing that fits into the buffer, and writing goes on when there is room.
func TestDiskFull(t *testing.T) {
	if !canFillDisk {
		t.Skip("no file size limit on this system")
	}
	cmd, lines := startChild(t, "full", filepath.Join(t.TempDir(), "ledger.db"))
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
	}
	if err := cmd.Wait(); err != nil || len(said) == 0 || said[len(said)-1] != "fine" {
		t.Fatalf("%v: %s", err, strings.Join(said, "\n"))
	}
}
