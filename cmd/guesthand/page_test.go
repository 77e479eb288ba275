package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/guesthand/guesthand/host/hosttest"
)

var screenshots = flag.Bool("screenshots", false, "write docs/screenshots anew")

const pageConfig = `[brokers.b]
driver = "embedded"
[queues.default]
broker = "b"
retry = { max_attempts = 2, base = "10ms" }
[queues.mail]
broker = "b"
handler = "mail"
retry = {}
[admin]
listen = %q
`

// tab is the host's page in a headless Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// browse opens the page at an address.
func browse(t *testing.T, url string) *tab {
	t.Helper()
	binary := os.Getenv("GUESTHAND_TEST_CHROMIUM")
	if binary == "" {
		t.Skip("GUESTHAND_TEST_CHROMIUM names no Chromium; make test sets it")
	}
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1200, 760), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocated, end := chromedp.NewExecAllocator(context.Background(), o...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	// The first context is the browser's life.
	if _, err := chromedp.Run(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	do(b, chromedp.Navigate(url))
	return b
}

// do runs one action of the browser's.
func do[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("browser: %v; the page says:\n%s", err, b.text())
	}
	return v
}

// text is what a person reads.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// sees waits until all of the texts are on the page.
func (b *tab) sees(texts ...string) {
	b.t.Helper()
	var missing string
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		shown := b.text()
		missing = ""
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.t.Fatalf("the page never shows %q, but\n%s", missing, b.text())
}

func (b *tab) open(hash string) {
	b.t.Helper()
	do(b, chromedp.Evaluate[string](fmt.Sprintf("location.hash = %q", hash)))
}

// click presses the button with this text.
func (b *tab) click(button string) {
	b.t.Helper()
	do(b, chromedp.Click(fmt.Sprintf(`//button[normalize-space()=%q]`, button)))
}

// shot keeps a picture for the docs.
func (b *tab) shot(name string) {
	b.t.Helper()
	if !*screenshots {
		return
	}
	png := do(b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "screenshots", name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func TestPage(t *testing.T) {
	address := freeAddress(t)
	s := newSite(t, fmt.Sprintf(pageConfig, address))
	s.puppet("orders")
	s.puppet("mail")
	s.start()
	b := browse(t, "http://"+address+"/")
	b.sees("Queues", "default", "mail", "ready, live", "no runs yet")

	// Work that is sent is seen without a reload.
	s.must("send", "default", "orders", "--payload", "0", "--count", "20")
	failing := s.sendTo("default", "orders", "1;upstream said 503|12;no such order <b>x</b>")
	retried := s.sendTo("default", "orders", "1;upstream said 503|0")
	b.sees("success 21", "retry 2", "permanent 1")
	b.shot("queues")

	// A message's history.
	b.open("#/runs")
	b.sees(failing, "upstream said 503")
	b.shot("runs")
	b.open("#/runs?outcome=permanent")
	b.sees(failing, "These are all.")
	if strings.Contains(b.text(), retried) {
		t.Error("the filter does not filter")
	}
	b.open("#/runs/" + retried)
	b.sees("Attempt 1: retry", "Attempt 2: success", "succeeded")
	b.shot("message")

	// A broken version of a handler shows, and the one before it serves on.
	if err := os.WriteFile(filepath.Join(s.dir, "plugins", "mail.wasm"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.open("#/handlers")
	b.sees("this is no WebAssembly module", "upstream said 503")
	b.shot("handlers")

	// A dead letter is looked at and replayed: it dies again, with the next attempt number.
	b.open("#/dead/default")
	b.sees("permanent: no such order <b>x</b>", failing)
	b.click(failing)
	b.sees("2 failures, 0 delays", "Guesthand-Job")
	b.shot("dead")
	b.click("Replay")
	hosttest.Eventually(t, patience, "the replay's end", func() bool {
		dead := s.dead("default")
		return len(dead) == 1 && dead[0].Replays == 1
	})
	b.open("#/runs/" + failing)
	b.sees("Attempt 3: permanent", "Dead letter")
	b.click("Drop")
	b.sees("Its message is gone for good.")
	do(b, chromedp.Click("#confirm-yes"))
	b.sees("No dead letters in default.")
	if n := len(s.dead("default")); n != 0 {
		t.Errorf("%d dead letters after the last was dropped", n)
	}

	// Pause and resume.
	b.open("#/queues")
	b.sees("default")
	b.click("Pause")
	b.sees("This host takes nothing more")
	do(b, chromedp.Click("#confirm-yes"))
	b.sees("paused")
	if !s.queue("default").Paused {
		t.Error("the queue is not paused")
	}
	b.click("Resume")
	hosttest.Eventually(t, patience, "the queue to be resumed", func() bool { return !s.queue("default").Paused })

	b.open("#/setup")
	b.sees("2 attempts", "64 MiB", "config.toml")
	b.shot("setup")

	for _, p := range do(b, chromedp.Evaluate[[]string](accessibility)) {
		t.Error(p)
	}
}

// accessibility looks for what a screen reader stumbles over.
const accessibility = `[
  ...[...document.querySelectorAll('button,a,select,input')].filter((e) => !(e.innerText || e.ariaLabel || (e.labels && e.labels.length))).map((e) => 'without a name: ' + e.outerHTML),
  ...[...document.querySelectorAll('th')].filter((e) => !e.scope).map((e) => 'a heading without scope: ' + e.innerText),
  ...(document.documentElement.lang ? [] : ['no language']),
  ...(document.querySelectorAll('main').length === 1 ? [] : ['not one main']),
]`

// On another address than loopback the page asks for the token, and then shows all.
func TestPageAsksForToken(t *testing.T) {
	address := freeAddress(t)
	s := newSite(t, fmt.Sprintf(pageConfig, address)+"token = \"env:PAGE_TOKEN\"\n")
	t.Setenv("PAGE_TOKEN", "open sesame")
	s.puppet("mail")
	s.start()
	b := browse(t, "http://"+address+"/")
	do(b, chromedp.SendKeys("#token-value", "wrong"))
	do(b, chromedp.Click("#token button"))
	b.sees("This host asks for a token")
	do(b, chromedp.SetValue("#token-value", "open sesame"))
	do(b, chromedp.Click("#token button"))
	b.sees("ready, live", "mail")
}

// A hundred thousand runs do not make the page wait: it reads a page of them at a time.
func TestPageOfManyRuns(t *testing.T) {
	address := freeAddress(t)
	s := newSite(t, fmt.Sprintf(pageConfig, address))
	hosttest.Install(t, filepath.Join(s.dir, "plugins"), "noop", hosttest.Noop(t))
	s.start()
	s.must("send", "default", "noop", "--count", "20000")
	hosttest.Eventually(t, patience, "the runs", func() bool { return s.queue("default").Depth == 0 })
	b := browse(t, "http://"+address+"/#/runs")
	b.sees("success", "Older runs")
	b.click("Older runs")
	hosttest.Eventually(t, patience, "older runs", func() bool {
		return do(b, chromedp.Evaluate[int]("document.querySelectorAll('tbody tr').length")) == 200
	})
}
