package egress_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/egress"
)

// canary counts the connections to servers that nobody may reach.
type canary struct {
	hits  atomic.Int64
	ports map[string]string // by address
}

// newCanary listens where it can: not every system has all of loopback, or IPv6.
func newCanary(t *testing.T, addrs ...string) *canary {
	t.Helper()
	c := &canary{ports: map[string]string{}}
	for _, addr := range addrs {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
		if err != nil {
			t.Logf("no canary on %s: %v", addr, err)
			c.ports[addr] = "9"
			continue
		}
		_, c.ports[addr], _ = net.SplitHostPort(l.Addr().String())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.hits.Add(1)
				conn.Close()
			}
		}()
		t.Cleanup(func() {
			l.Close()
			<-done
		})
	}
	return c
}

func (c *canary) silent(t *testing.T) {
	t.Helper()
	if n := c.hits.Swap(0); n > 0 {
		t.Errorf("%d connections to what is private", n)
	}
}

// names lead to addresses that are nobody's business.
var names = map[string][]string{
	"loop.evil.test":        {"127.0.0.1"},
	"loop2.evil.test":       {"127.8.8.8"},
	"loop6.evil.test":       {"::1"},
	"mapped.evil.test":      {"::ffff:127.0.0.1"},
	"mapped-meta.evil.test": {"::ffff:169.254.169.254"},
	"both.evil.test":        {"127.0.0.1", "::1"},
	"ten.evil.test":         {"10.0.0.1"},
	"home.evil.test":        {"192.168.1.1"},
	"mid.evil.test":         {"172.31.255.254"},
	"cgnat.evil.test":       {"100.64.0.1"},
	"bench.evil.test":       {"198.18.0.1"},
	"meta.evil.test":        {"169.254.169.254"},
	"ali.evil.test":         {"100.100.100.200"},
	"azure.evil.test":       {"168.63.129.16"},
	"aws6.evil.test":        {"fd00:ec2::254"},
	"gcp6.evil.test":        {"fd20:ce::254"},
	"zero.evil.test":        {"0.0.0.0"},
	"zeronet.evil.test":     {"0.1.2.3"},
	"zero6.evil.test":       {"::"},
	"multi.evil.test":       {"224.0.0.1"},
	"multi6.evil.test":      {"ff02::1"},
	"broad.evil.test":       {"255.255.255.255"},
	"classe.evil.test":      {"240.0.0.1"},
	"nat64.evil.test":       {"64:ff9b::7f00:1"},
	"nat64-meta.evil.test":  {"64:ff9b::a9fe:a9fe"},
	"nat64-ten.evil.test":   {"64:ff9b::a00:1"},
	"local64.evil.test":     {"64:ff9b:1::7f00:1"},
	"sixto4.evil.test":      {"2002:7f00:1::1"},
	"teredo.evil.test":      {"2001:0:7f00:1::1"},
	"compat.evil.test":      {"::7f00:1"},
	"siit.evil.test":        {"::ffff:0:7f00:1"},
	"ula.evil.test":         {"fd12:3456::1"},
	"site.evil.test":        {"fec0::1"},
	"linklocal.evil.test":   {"fe80::1"},
	"doc.evil.test":         {"2001:db8::1"},
	"mixed.evil.test":       {"127.0.0.1", "169.254.169.254", "10.0.0.1"},
}

// spellings are URLs of private places, and of nothing at all. PORT is the canary's on
// 127.0.0.1, PORT6 that on ::1.
var spellings = []string{
	"http://127.0.0.1:PORT/", "http://127.0.0.1:0PORT/", "http://[::1]:PORT6/", "http://[0:0:0:0:0:0:0:1]:PORT6/",
	"http://[::ffff:127.0.0.1]:PORT/", "http://[::ffff:7f00:1]:PORT/", "http://[::127.0.0.1]:PORT/",
	"http://localhost:PORT/", "http://LOCALHOST:PORT/", "http://localhost.:PORT/", "http://ip6-localhost:PORT6/",
	"http://127.1:PORT/", "http://127.0.1:PORT/", "http://2130706433:PORT/", "http://017700000001:PORT/",
	"http://0x7f000001:PORT/", "http://0x7f.1:PORT/", "http://0X7F.0.0.0x1:PORT/", "http://0177.0.0.1:PORT/",
	"http://127.0.0.01:PORT/", "http://127.0.0.1.:PORT/", "http://0:PORT/", "http://0.0.0.0:PORT/", "http://[::]:PORT6/",
	"http://127.0.0.1%2f@good.test:PORT/", "http://good.test@127.0.0.1:PORT/", "http://good.test:80@127.0.0.1:PORT/",
	"http://good.test%40127.0.0.1:PORT/", "http://good.test%00.127.0.0.1:PORT/", "http://good.test\\@127.0.0.1:PORT/",
	"http://127.0.0.1:PORT#@good.test/", "http://good.test#@127.0.0.1:PORT/", "http:127.0.0.1:PORT/",
	"http:///127.0.0.1:PORT/", "http:\\\\127.0.0.1:PORT/", "//127.0.0.1:PORT/", "127.0.0.1:PORT", "/etc/passwd", "",
	"http://[::1%25lo]:PORT6/", "http://[fe80::1%25eth0]/", "http://[fe80::1]/", "http://[::1]PORT6/", "http://[::1/",
	"http://[127.0.0.1]:PORT/", "http://[v1.fe80]/", "http://::1:PORT6/", "http://127.0.0.1 :PORT/", "http://127.0.0.1\n:PORT/",
	"http://127。0。0。1:PORT/", "http://①②⑦.0.0.1:PORT/", "http://ｌｏｃａｌｈｏｓｔ:PORT/", "http://loc\u00adalhost:PORT/",
	"http://xn--/", "http://good..test/", "http://.good.test/", "http://good.test:0/", "http://good.test:65536/",
	"http://good.test:-1/", "http://good.test:80:80/", "http://169.254.169.254/latest/meta-data/", "http://169.254.169.254./",
	"http://0xA9FEA9FE/", "http://2852039166/", "http://[::ffff:a9fe:a9fe]/", "http://[64:ff9b::169.254.169.254]/",
	"http://[fd00:ec2::254]/", "http://100.100.100.200/", "http://10.0.0.1/", "http://192.168.0.1/", "http://172.16.0.1/",
	"http://255.255.255.255/", "http://224.0.0.1/", "http://metadata.google.internal/", "http://loop.evil.test.:PORT/",
	"http://LOOP.EVIL.TEST:PORT/", "file:///etc/passwd", "gopher://127.0.0.1:PORT/_x", "ftp://127.0.0.1:PORT/",
	"unix:///var/run/docker.sock", "http+unix://%2Fvar%2Frun%2Fdocker.sock/", "javascript:alert(1)", "data:text/plain,x",
	"ws://127.0.0.1:PORT/", "HTTP://127.0.0.1:PORT/", "https://127.0.0.1:PORT/", "https://loop.evil.test:PORT/",
}

// Every name and spelling is refused even where the operator allowed its target, and nothing
// private sees so much as a connection.
func TestNothingPrivateIsReached(t *testing.T) {
	c := newCanary(t, "127.0.0.1", "::1", "127.8.8.8")
	_, resolver := newDNS(t, withName(names, "metadata.google.internal", "169.254.169.254"))
	urls := spellings
	for name := range names {
		for _, port := range []string{c.ports["127.0.0.1"], c.ports["::1"], c.ports["127.8.8.8"]} {
			urls = append(urls, "http://"+name+":"+port+"/")
		}
	}
	for _, raw := range urls {
		raw = strings.ReplaceAll(strings.ReplaceAll(raw, "PORT6", c.ports["::1"]), "PORT", c.ports["127.0.0.1"])
		client := egress.New(egress.Options{Allow: everything(t, raw), Resolver: resolver})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := client.Do(ctx, egress.Request{Method: "GET", URL: raw})
		cancel()
		switch {
		case errors.Is(err, egress.ErrNotGranted), errors.Is(err, egress.ErrMalformed):
		case nowhere.MatchString(raw) && errors.Is(err, egress.ErrUnavailable): // there may be no such name
		default:
			t.Errorf("%s: %v", raw, err)
		}
		client.Close()
	}
	c.silent(t)
	if len(urls) < 150 {
		t.Errorf("only %d URLs", len(urls))
	}
}

var nowhere = regexp.MustCompile(`good\.test|xn--|ip6-localhost`)

func withName(zone map[string][]string, name string, addrs ...string) map[string][]string {
	all := map[string][]string{name: addrs}
	for k, v := range zone {
		all[k] = v
	}
	return all
}

// everything is an operator's most careless allowlist: it has what the URL names, as far as
// that can be written at all.
func everything(t *testing.T, raw string) (allow []egress.Target) {
	texts := []string{}
	for _, pattern := range []string{"*.test", "*.internal", "localhost", "127.0.0.1", "[::1]", "good.test"} {
		for _, scheme := range []string{"http://", "https://"} {
			texts = append(texts, scheme+pattern)
			if u, err := url.Parse(raw); err == nil && u.Port() != "" {
				texts = append(texts, scheme+pattern+":"+u.Port())
			}
		}
	}
	if u, err := url.Parse(raw); err == nil {
		texts = append(texts, u.Scheme+"://"+u.Host)
	}
	for _, text := range texts {
		if target, err := egress.ParseTarget(text); err == nil {
			allow = append(allow, target)
		}
	}
	return allow
}

// A server that is allowed sends the client elsewhere.
func TestRedirectsAreGuarded(t *testing.T) {
	c := newCanary(t, "127.0.0.2", "::1")
	var location atomic.Value
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1); r.URL.Path == "/end" {
			fmt.Fprint(w, "end")
			return
		}
		w.Header().Set("Location", location.Load().(string))
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	far, six := c.ports["127.0.0.2"], c.ports["::1"]
	_, resolver := newDNS(t, map[string][]string{
		"good.test": {"127.0.0.1"}, "other.test": {"127.0.0.1"}, "evil.test": {"127.0.0.2"}, "evil6.test": {"::1"},
		"meta.test": {"169.254.169.254"},
	})
	client := egress.New(egress.Options{Resolver: resolver, Private: prefixes("127.0.0.1/32"),
		Allow: targets(t, "http://good.test:"+port, "http://evil.test:"+far, "http://evil6.test:"+six, "http://meta.test",
			"http://127.0.0.2:"+far, "http://[::1]:"+six, "http://169.254.169.254")})
	defer client.Close()
	for _, tt := range []struct {
		location string
		want     error
	}{
		{"/end", nil},
		{"//good.test:" + port + "/end", nil},
		{"HTTP://GOOD.TEST.:" + port + "/end", nil},
		{"http://127.0.0.1:" + port + "/end", egress.ErrNotGranted}, // allowed by its name only
		{"http://other.test:" + port + "/end", egress.ErrNotGranted},
		{"http://evil.test:" + far + "/", egress.ErrNotGranted},
		{"http://evil6.test:" + six + "/", egress.ErrNotGranted},
		{"http://127.0.0.2:" + far + "/", egress.ErrNotGranted},
		{"//127.0.0.2:" + far, egress.ErrNotGranted},
		{"http://[::1]:" + six + "/", egress.ErrNotGranted},
		{"http://[::ffff:127.0.0.2]:" + far + "/", egress.ErrNotGranted},
		{"http://169.254.169.254/latest", egress.ErrNotGranted},
		{"http://meta.test/latest", egress.ErrNotGranted},
		{"http://127.2:" + far + "/", egress.ErrMalformed},
		{"http://2130706434:" + far + "/", egress.ErrMalformed},
		{"http://good.test:" + port + "@127.0.0.2:" + far + "/", egress.ErrMalformed},
		{"http://user:pass@good.test:" + port + "/end", egress.ErrMalformed},
		{"https://good.test:" + port + "/end", egress.ErrNotGranted},
		{"file:///etc/passwd", egress.ErrNotGranted},
		{"gopher://127.0.0.2:" + far + "/_x", egress.ErrNotGranted},
		{"http://bad host/?secret", egress.ErrUnavailable},
		{"/loop", egress.ErrUnavailable},
	} {
		location.Store(tt.location)
		calls.Store(0)
		r, err := client.Do(t.Context(), egress.Request{Method: "POST", URL: "http://good.test:" + port + "/", Body: []byte("b")})
		if !errors.Is(err, tt.want) || (err == nil) != (r != nil && string(r.Body) == "end") {
			t.Errorf("%s: %v, want %v", tt.location, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: a query in %v", tt.location, err)
		}
		if n := calls.Load(); n > 11 {
			t.Errorf("%s: %d requests", tt.location, n)
		}
	}
	c.silent(t)
}

// A name that has a harmless address when it is first asked for, and another one afterwards.
func TestRebinding(t *testing.T) {
	c := newCanary(t, "127.0.0.2")
	l, err := net.Listen("tcp", "127.0.0.1:"+c.ports["127.0.0.2"])
	if err != nil {
		t.Skip(err) // taken, or there is one loopback address only
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
	})}}
	server.Start()
	defer server.Close()
	d, resolver := newDNS(t, map[string][]string{"re.test": {"127.0.0.1"}})
	d.mu.Lock()
	d.then["re.test"] = []string{"127.0.0.2"}
	d.mu.Unlock()
	url := "http://re.test:" + c.ports["127.0.0.2"]
	client := egress.New(egress.Options{Resolver: resolver, Private: prefixes("127.0.0.1/32"), Allow: targets(t, url)})
	defer client.Close()
	if _, err := client.Do(t.Context(), egress.Request{Method: "GET", URL: url}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Do(t.Context(), egress.Request{Method: "GET", URL: url}); !errors.Is(err, egress.ErrNotGranted) {
		t.Errorf("%v", err)
	}
	c.silent(t)
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func targets(t testing.TB, texts ...string) (list []egress.Target) {
	t.Helper()
	for _, text := range texts {
		target, err := egress.ParseTarget(text)
		if err != nil {
			t.Fatalf("%s %v", text, err)
		}
		list = append(list, target)
	}
	return list
}
