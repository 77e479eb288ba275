package pgdriver_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

const (
	workerEnv   = "PGDRIVER_TEST_WORKER" // the server's address, for the other process
	workerLease = 3 * time.Second
)

// TestWorkerProcess is the other process of TestKilledWorker: it fails some messages and holds
// others, renewing them, until it is killed.
func TestWorkerProcess(t *testing.T) {
	url := os.Getenv(workerEnv)
	if url == "" {
		t.Skip("the second process of TestKilledWorker, which starts it")
	}
	d, err := pgdriver.Open(t.Context(), pgdriver.Options{URL: url, Worker: "doomed"})
	if err != nil {
		t.Fatal(err)
	}
	q := openQueue(t, d, drivers.QueueOptions{Lease: workerLease})
	ds := receive(t, q, 10)
	for _, m := range ds[:5] {
		if err := q.Settle(t.Context(), []drivers.Settlement{failed(m)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("\nholding 5")
	for {
		time.Sleep(workerLease / 6)
		for _, err := range q.Renew(t.Context(), ds[5:]) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestKilledWorker: of two processes on one queue one is killed, and the other gets what that
// one held within one lease, with the counts that both have left.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a process")
	}
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{Lease: workerLease})
	want := map[string]drivers.Tally{}
	var ms []drivers.Message
	for i := range 20 {
		id := fmt.Sprintf("m%02d", i)
		ms = append(ms, drivers.Message{ID: id})
		switch {
		case i < 5:
			want[id] = drivers.Tally{Failures: 1}
		case i < 10:
			want[id] = drivers.Tally{Stalls: 1}
		default:
			want[id] = drivers.Tally{}
		}
	}
	send(t, q, ms...)
	kill := startWorker(t, s.URL)
	check := func(ds []*drivers.Delivery) {
		t.Helper()
		for _, d := range ds {
			if tally, ok := want[d.ID]; !ok || d.Carry.Tally != tally {
				t.Errorf("%s came with %+v, want %+v (%t)", d.ID, d.Carry.Tally, tally, ok)
			}
			delete(want, d.ID)
		}
		settle(t, q, drivers.Ack, ds...)
	}
	check(receive(t, q, 15))
	empty(t, q, workerLease+workerLease/3) // the others are renewed
	kill()
	killed := time.Now()
	check(receive(t, q, 5))
	if took := time.Since(killed); took > 10*workerLease {
		t.Errorf("handed over after %s, the lease is %s", took, workerLease)
	} else {
		t.Logf("handed over %s after the kill, lease %s", took, workerLease)
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
	hasCounts(t, q, drivers.Counts{})
}

// startWorker starts the other process and returns when it holds its messages.
func startWorker(t *testing.T, url string) (kill func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestWorkerProcess$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), workerEnv+"="+url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dead := false
	kill = func() {
		if !dead {
			dead = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // ends by the signal
		}
	}
	t.Cleanup(kill)
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "holding") {
			return kill
		}
		said = append(said, lines.Text())
	}
	t.Fatalf("the worker process ended: %s", strings.Join(said, "\n"))
	return nil
}

// soak is the environment variable for the long run: how many messages.
const soak = "GUESTHAND_SOAK"

// TestMemoryFlat sends and finishes many messages and finds the memory of the client and the
// tables as they were early on. With GUESTHAND_SOAK=1000000 it is the long run.
func TestMemoryFlat(t *testing.T) {
	total := 20_000
	if v := os.Getenv(soak); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q: want how many messages", soak, v)
		}
		total = max(total, n)
	}
	s := pgtest.Start(t, "autovacuum_naptime=1s")
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	const size = 500
	ms := make([]drivers.Message, size)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: make([]byte, 1<<10), Headers: drivers.Header{"X-A": {"a"}}}
	}
	var early int64
	for n := 0; n < total; n += size {
		if n == total/4 {
			early = heap()
		}
		send(t, q, ms...)
		ds := receive(t, q, size)
		settle(t, q, drivers.Requeue, ds[:size/10]...)
		settle(t, q, drivers.Ack, ds[size/10:]...)
		settle(t, q, drivers.Ack, receive(t, q, size/10)...)
	}
	late := heap()
	// What was finished is cleaned and its room used again: the table is a small part of what
	// went through it.
	table := value[int64](t, c, "SELECT pg_total_relation_size('guesthand.messages')")
	t.Logf("after %d messages %d KiB, after %d %d KiB; the table has %d KiB", total/4, early>>10, total, late>>10, table>>10)
	if grown := late - early; grown > 4<<20 {
		t.Errorf("the client grew by %d bytes", grown)
	}
	if through := int64(total) << 10; total >= 500_000 && table > through/4 {
		t.Errorf("%d bytes went through a table that now has %d", through, table)
	}
	if n := value[int](t, c, "SELECT count(*) FROM guesthand.messages"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// heap is what the process holds.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
