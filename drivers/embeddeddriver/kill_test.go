package embeddeddriver_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
)

// A child process of the tests is a worker that is killed: its part is in this variable, its
// store in the other.
const (
	childPart = "GUESTHAND_TEST_CHILD"
	childDir  = "GUESTHAND_TEST_DIR"
)

func TestMain(m *testing.M) {
	part, ok := children[os.Getenv(childPart)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := child(part); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	select {} // until it is killed
}

var children = map[string]func(ctx context.Context, q drivers.Queue) error{
	"killer": killer, "holder": holder, "failer": failer,
}

func child(part func(context.Context, drivers.Queue) error) error {
	ctx := context.Background()
	d, err := embeddeddriver.Open(ctx, embeddeddriver.Options{Dir: os.Getenv(childDir)})
	if err != nil {
		return err
	}
	q, err := d.OpenQueue(ctx, queueOptions())
	if err != nil {
		return err
	}
	return part(ctx, q)
}

func queueOptions() drivers.QueueOptions {
	return drivers.QueueOptions{Name: "q", Create: true, Lease: time.Second}
}

// killer acknowledges everything but the message that kills it.
func killer(ctx context.Context, q drivers.Queue) error {
	for {
		ds, err := q.Receive(ctx, 64)
		if err != nil {
			return err
		}
		var ss []drivers.Settlement
		for _, d := range ds {
			q.(drivers.StartRecorder).RecordStart(d)
			if d.ID != "killer" {
				ss = append(ss, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
				continue
			}
			go fmt.Println("killer", d.Carry.Stalls, d.Stalled, d.Held)
		}
		for _, err := range q.Settle(ctx, ss) {
			if err != nil {
				return err
			}
		}
	}
}

// holder takes everything and starts every second.
func holder(ctx context.Context, q drivers.Queue) error {
	for n := 0; n < inFlight; {
		ds, err := q.Receive(ctx, inFlight-n)
		if err != nil {
			return err
		}
		for _, d := range ds {
			i, err := strconv.Atoi(d.ID)
			if err != nil {
				return err
			}
			if i%2 == 0 {
				q.(drivers.StartRecorder).RecordStart(d)
			}
		}
		n += len(ds)
	}
	fmt.Println("holding")
	return nil
}

// failer records a failure of each message, and is killed before the server has written
// what it knows of the deliveries.
func failer(ctx context.Context, q drivers.Queue) error {
	for n := 0; n < 64; {
		ds, err := q.Receive(ctx, 64-n)
		if err != nil {
			return err
		}
		var ss []drivers.Settlement
		for _, d := range ds {
			q.(drivers.StartRecorder).RecordStart(d)
			c := d.Carry
			c.Failures++
			ss = append(ss, drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: c})
		}
		for _, err := range q.Settle(ctx, ss) {
			if err != nil {
				return err
			}
		}
		n += len(ds)
	}
	fmt.Println("failed")
	return nil
}

const inFlight = 1000

// process is a running child.
type process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

func start(t *testing.T, part, dir string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childPart+"="+part, childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, out: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// says waits for the child's next line.
func (p *process) says(t *testing.T) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the child said nothing: %v", p.out.Err())
	}
	if line := p.out.Text(); !strings.HasPrefix(line, "error") {
		return line
	}
	t.Fatal(p.out.Text())
	return ""
}

func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed, which is an error here
}

func openStore(t *testing.T, dir string) (*embeddeddriver.Driver, drivers.Queue) {
	t.Helper()
	d, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, d) })
	q, err := d.OpenQueue(t.Context(), queueOptions())
	if err != nil {
		t.Fatal(err)
	}
	return d, q
}

func closeAll(t *testing.T, c interface{ Close(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

func send(t *testing.T, q drivers.Queue, ms ...drivers.Message) {
	t.Helper()
	for _, err := range q.Send(t.Context(), ms) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func receive(t *testing.T, q drivers.Queue, n int) []*drivers.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := q.Receive(ctx, n-len(got))
		if err != nil {
			t.Fatalf("%d of %d received: %v", len(got), n, err)
		}
		got = append(got, ds...)
	}
	return got
}

func settle(t *testing.T, q drivers.Queue, v drivers.Verdict, ds ...*drivers.Delivery) {
	t.Helper()
	var ss []drivers.Settlement
	for _, d := range ds {
		ss = append(ss, drivers.Settlement{Delivery: d, Verdict: v, Carry: d.Carry, Death: &drivers.Death{Reason: "test"}})
	}
	for _, err := range q.Settle(t.Context(), ss) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestKillerCountsUp: under load the server forgets its last deliveries when the process
// is killed, and the journal does not.
func TestKillerCountsUp(t *testing.T) {
	dir := t.TempDir()
	d, q := openStore(t, dir)
	ms := make([]drivers.Message, 4000)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: []byte("load")}
	}
	ms[20].ID = "killer"
	send(t, q, ms...)
	closeAll(t, d)
	for stalls := range 5 {
		p := start(t, "killer", dir)
		want := fmt.Sprintf("killer %d %d false", stalls, min(stalls, 1))
		if got := p.says(t); got != want {
			t.Errorf("start %d: the child says %q, want %q", stalls+1, got, want)
		}
		p.kill()
	}
	_, q = openStore(t, dir)
	for {
		m := receive(t, q, 1)[0]
		if m.ID == "killer" {
			if m.Carry.Stalls != 5 || m.Stalled != 1 || m.Carry.Failures != 0 || m.Held {
				t.Errorf("carry %+v, stalled %d, held %t", m.Carry, m.Stalled, m.Held)
			}
			return
		}
		settle(t, q, drivers.Ack, m)
	}
}

// TestKillInFlight: all come back, those that were started with one stall, the others
// without.
func TestKillInFlight(t *testing.T) {
	dir := t.TempDir()
	d, q := openStore(t, dir)
	ms := make([]drivers.Message, inFlight)
	for i := range ms {
		ms[i] = drivers.Message{ID: strconv.Itoa(i), Job: "job", Payload: []byte("x")}
	}
	send(t, q, ms...)
	closeAll(t, d)

	p := start(t, "holder", dir)
	if got := p.says(t); got != "holding" {
		t.Fatal(got)
	}
	p.kill()

	_, q = openStore(t, dir)
	seen := map[string]bool{}
	for _, m := range receive(t, q, inFlight) {
		i, err := strconv.Atoi(m.ID)
		if err != nil || seen[m.ID] {
			t.Fatalf("message %q, %v", m.ID, err)
		}
		seen[m.ID] = true
		want := 1 - i%2
		if m.Carry.Stalls != want || m.Stalled != want || m.Held {
			t.Errorf("message %d: stalls %d, stalled %d, held %t, want %d", i, m.Carry.Stalls, m.Stalled, m.Held, want)
		}
		settle(t, q, drivers.Ack, m)
	}
	if c, err := q.Counts(t.Context()); err != nil || c != (drivers.Counts{}) {
		t.Errorf("counts %+v, %v", c, err)
	}
}

// TestKillAfterFailures: a failure that was recorded is seen though the server has forgotten the
// delivery it belongs to, and it is no stall as well.
func TestKillAfterFailures(t *testing.T) {
	dir := t.TempDir()
	d, q := openStore(t, dir)
	ms := make([]drivers.Message, 64)
	for i := range ms {
		ms[i] = drivers.Message{ID: strconv.Itoa(i), Job: "job"}
	}
	send(t, q, ms...)
	closeAll(t, d)
	for failures := 1; failures <= 3; failures++ {
		p := start(t, "failer", dir)
		if got := p.says(t); got != "failed" {
			t.Fatal(got)
		}
		p.kill()
		d, q := openStore(t, dir)
		ds := receive(t, q, len(ms))
		for _, m := range ds {
			if m.Carry.Failures != failures || m.Carry.Stalls != 0 || m.Stalled != 0 {
				t.Errorf("message %s: %+v, stalled %d, want %d failures", m.ID, m.Carry.Tally, m.Stalled, failures)
			}
		}
		settle(t, q, drivers.Requeue, ds...)
		closeAll(t, d)
	}
}
