package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/config"
)

func TestKV(t *testing.T) {
	c := parse(t, minimal+"[handlers.a]\nkv = {}\n[handlers.b]\nkv = { max_keys = 5, max_bytes = \"1KiB\", bucket = \"b-staging\" }\n")
	a, b := handler(t, c, "a", nil), handler(t, c, "b", nil)
	if want := (config.KV{MaxKeys: 10000, MaxBytes: 16 << 20}); a.KV == nil || *a.KV != want || a.KV.BucketName("a") != "a" {
		t.Errorf("kv = {} is %+v", a.KV)
	}
	if want := (config.KV{MaxKeys: 5, MaxBytes: 1024, Bucket: "b-staging"}); b.KV == nil || *b.KV != want || b.KV.BucketName("b") != "b-staging" {
		t.Errorf("kv is %+v", b.KV)
	}
	a.KV.MaxKeys = 1
	if again := handler(t, c, "a", nil); again.KV.MaxKeys != 10000 {
		t.Error("the configuration changed")
	}
	if other := handler(t, c, "other", nil); other.KV != nil || other.Send != nil {
		t.Errorf("granted to everybody: %+v", other)
	}
	x, y := strings.Repeat("n", 128), strings.Repeat("n", 200)
	if got := a.KV.BucketName(x); got != x {
		t.Errorf("bucket of 128 bytes: %s", got)
	}
	if one, two := a.KV.BucketName(y), a.KV.BucketName(y+"m"); len(one) != 128 || one == two {
		t.Errorf("buckets of long names: %s, %s", one, two)
	}
}

func TestSend(t *testing.T) {
	c := parse(t, minimal+"[limits]\nsend_max = 7\n[handlers.a]\nsend = [\"default\"]\nsend_bytes = \"1KiB\"\n")
	h := handler(t, c, "a", nil)
	if !reflect.DeepEqual(h.Send, []string{"default"}) || h.SendMax != 7 || h.SendBytes != 1024 {
		t.Errorf("got %+v", h)
	}
}

// A trusted sidecar may grant, but not what is another's or not there.
func TestSidecarEffects(t *testing.T) {
	c := parse(t, "trust_sidecars = true\n"+minimal+"[handlers.other]\nkv = { bucket = \"resize\" }\n")
	for text, want := range map[string]string{
		"kv = {}":                         "its bucket is that of [handlers.other] in config.toml",
		"kv = { bucket = \"x\" }":         "names a bucket, which only config.toml may",
		"send = [\"default\", \"other\"]": "there is no [queues.other]",
		"send = [\"default\"]":            "",
	} {
		_, err := c.Handler("resize", sidecar(t, text, true))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A broker without values needs a [store], and the file says so.
func TestKVWithoutStore(t *testing.T) {
	const file = "[brokers.r]\ndriver = \"rabbitmq\"\nurl = \"amqp://localhost\"\n[brokers.m]\ndriver = \"embedded\"\n" +
		"[queues.a]\nbroker = \"r\"\nretry = {}\n[queues.b]\nbroker = \"m\"\nretry = {}\n" +
		"[queues.c]\nbroker = \"r\"\nretry = {}\nhandler = \"other\"\n[handlers.h]\nkv = {}\n"
	c := parse(t, file)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Text, "on queue a kv_* answers that it is not granted: broker r (rabbitmq)") {
		t.Errorf("warnings %v", c.Warnings)
	}
	if c.BucketBroker("a") != "r" || c.BucketBroker("b") != "m" {
		t.Errorf("buckets on %s and %s", c.BucketBroker("a"), c.BucketBroker("b"))
	}
	c = parse(t, file+"[store]\nbroker = \"m\"\n")
	if len(c.Warnings) != 0 || c.BucketBroker("a") != "m" || c.BucketBroker("b") != "m" {
		t.Errorf("with a store: %v, buckets on %s and %s", c.Warnings, c.BucketBroker("a"), c.BucketBroker("b"))
	}
}
