package sqsdriver_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

func TestMain(m *testing.M) {
	sqstest.Credentials()
	flag.Parse()
	// Nearly all of a test's time is waiting for whole seconds to pass.
	if p := flag.Lookup("test.parallel"); p != nil {
		_ = flag.Set("test.parallel", "24") // a number is fine
	}
	os.Exit(m.Run())
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// open opens a driver that the test closes.
func open(t testing.TB, url string, o sqsdriver.Options) *sqsdriver.Driver {
	t.Helper()
	o.Endpoint = url
	if o.Wait == 0 {
		o.Wait = time.Second
	}
	if o.Logger == nil && testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := sqsdriver.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeAll(t testing.TB, d drivers.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// fifo opens every queue as a FIFO queue.
type fifo struct{ *sqsdriver.Driver }

func (f fifo) OpenQueue(ctx context.Context, o drivers.QueueOptions) (drivers.Queue, error) {
	o.Names = map[string]string{sqsdriver.NameQueue: "guesthand_" + o.Name + ".fifo"}
	return f.Driver.OpenQueue(ctx, o)
}

func host(url string) string { return strings.TrimPrefix(url, "http://") }
