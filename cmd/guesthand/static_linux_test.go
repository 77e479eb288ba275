package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/guesthand/guesthand/host/hosttest"
)

// ordinary is the user of the image.
const ordinary = 65532

// confine starts guesthand in a folder as the image and the unit do: nothing else is there, it
// cannot be written to but for /data, and the user is an ordinary one.
const confine = `mount --bind "$1" "$1" && mount --bind "$1/data" "$1/data" && mount -o remount,ro,bind "$1" &&
! touch "$1/written" 2>/dev/null && exec chroot --userspec=65532:65532 "$1" /guesthand run`

// The binary needs nothing beside it: it runs alone in a read-only root, as an ordinary user,
// with its data on a volume.
func TestStaticBinaryInAReadOnlyRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: nobody else may make a read-only root of a folder")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "-m", "mount", "--bind", "/tmp", "/tmp").CombinedOutput(); err != nil {
		t.Skipf("no mounts here, not even for root: %v: %s", err, out)
	}
	s := newSite(t, `
plugins = "/plugins"
data = "/data"
[brokers.b]
driver = "embedded"
dir = "/data/broker"
[queues.q]
broker = "b"
[ledger]
path = "/data/ledger.db"
[admin]
listen = "none"
`)
	s.puppet("puppet")
	root, err := os.MkdirTemp("", "static") // t.TempDir's parents are closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(root, "guesthand"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	static(t, filepath.Join(root, "guesthand"))
	for _, name := range []string{"plugins", "data"} {
		if err := os.Rename(filepath.Join(s.dir, name), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(s.dir, "config.toml"), filepath.Join(root, "config.toml")); err != nil {
		t.Fatal(err)
	}
	// The compiled code that tests share is out of reach there.
	if err := os.Remove(filepath.Join(root, "data", "cache")); err != nil {
		t.Fatal(err)
	}
	open(t, root)
	p := s.startWith(exec.Command("unshare", "-m", "sh", "-c", confine, "sh", root))
	socket := filepath.Join(root, "data", "guesthand.sock")
	s.write("config.toml", "data = \""+filepath.Dir(socket)+"\"\n[brokers.b]\ndriver = \"embedded\"\n[queues.q]\nbroker = \"b\"\n")
	s.must("send", "q", "puppet", "--payload", "0", "--count", "20")
	hosttest.Eventually(t, patience, "20 runs", func() bool { return len(s.runs("--outcome", "success", "-n", "100")) == 20 })
	info, err := os.Stat(filepath.Join(root, "data", "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != ordinary {
		t.Errorf("the ledger is user %d's", uid)
	}
	p.stop()
}

// static wants a binary that asks for no loader and no library.
func static(t *testing.T, file string) {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("libraries %v, %v", libraries, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it asks for a loader")
		}
	}
}

// open lets the ordinary user read all of a folder, and own its data.
func open(t *testing.T, root string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c",
		`chmod -R a+rX "$1" && chown -R 65532:65532 "$1/data" && chmod -R u+rwX "$1/data"`, "sh", root).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
