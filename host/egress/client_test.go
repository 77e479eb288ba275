package egress_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/host/egress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a server on loopback with the client that may ask it.
type site struct {
	*httptest.Server
	client *egress.Client
	mu     sync.Mutex
	calls  []string // what OnCall was told
}

func (s *site) results() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *site) get(t *testing.T, path string) (*egress.Response, error) {
	t.Helper()
	return s.client.Do(t.Context(), egress.Request{Method: "GET", URL: s.URL + path})
}

// newSite serves in the clear, or with TLS as example.com, which resolves to it.
func newSite(t testing.TB, encrypted bool, h http.HandlerFunc, change func(s *site, o *egress.Options)) *site {
	t.Helper()
	s := &site{Server: httptest.NewUnstartedServer(h)}
	_, resolver := newDNS(t, map[string][]string{"example.com": {"127.0.0.1"}, "www.example.com": {"127.0.0.1"}})
	o := egress.Options{Private: prefixes("127.0.0.1/32"), Resolver: resolver}
	if encrypted {
		s.EnableHTTP2 = true
		s.Config.ErrorLog = quiet
		s.StartTLS()
		_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
		s.URL = "https://example.com:" + port
		o.Roots = x509.NewCertPool()
		o.Roots.AddCert(s.Certificate())
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	o.Allow = targets(t, s.URL)
	o.OnCall = func(result string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, result)
	}
	if change != nil {
		change(s, &o)
	}
	s.client = egress.New(o)
	t.Cleanup(s.client.Close)
	return s
}

func TestRequestAndResponse(t *testing.T) {
	var got *http.Request
	var body []byte
	s := newSite(t, false, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("X-Answer", "42")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "short and stout")
	}, nil)
	header := http.Header{"x-own": {"1", "2"}, "Host": {"evil.test"}, "content-length": {"99"}, "Transfer-Encoding": {"chunked"},
		"Connection": {"X-Own"}, "Upgrade": {"h2c"}, "Proxy-Authorization": {"Basic x"}, "Expect": {"100-continue"}, "TE": {"trailers"}}
	r, err := s.client.Do(t.Context(), egress.Request{Method: "PATCH", URL: s.URL + "/p?q=1#fragment", Header: header, Body: []byte("body")})
	if err != nil || r.Status != http.StatusTeapot || string(r.Body) != "short and stout" || r.Header.Get("X-Answer") != "42" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got.Method != "PATCH" || got.RequestURI != "/p?q=1" || string(body) != "body" || "http://"+got.Host != s.URL || got.ContentLength != 4 {
		t.Errorf("%s %s %q, host %s, length %d", got.Method, got.RequestURI, body, got.Host, got.ContentLength)
	}
	want := http.Header{"X-Own": {"1", "2"}, "User-Agent": {"guesthand"}, "Accept-Encoding": {"gzip"}, "Content-Length": {"4"}}
	if fmt.Sprint(got.Header) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", got.Header, want)
	}
	if !slices.Equal(s.results(), []string{"4xx"}) {
		t.Errorf("counted %v", s.results())
	}
	if header["Host"][0] != "evil.test" || len(header) != 9 {
		t.Errorf("the request's own header was changed: %v", header)
	}
}

func TestMalformed(t *testing.T) {
	s := newSite(t, false, func(http.ResponseWriter, *http.Request) {}, func(_ *site, o *egress.Options) { o.MaxRequest = 10 })
	many := http.Header{}
	for i := range 101 {
		many.Add(fmt.Sprint("X-", i), "v")
	}
	for _, tt := range []struct {
		name string
		r    egress.Request
		want error
	}{
		{"no method", egress.Request{}, egress.ErrMalformed},
		{"method", egress.Request{Method: "GET\r\nX: y"}, egress.ErrMalformed},
		{"method with a space", egress.Request{Method: "GET /"}, egress.ErrMalformed},
		{"trace", egress.Request{Method: "TRACE"}, egress.ErrMalformed},
		{"track", egress.Request{Method: "track"}, egress.ErrMalformed},
		{"connect", egress.Request{Method: "CONNECT"}, egress.ErrMalformed},
		{"header's name", egress.Request{Method: "GET", Header: http.Header{"a b": {"v"}}}, egress.ErrMalformed},
		{"empty name", egress.Request{Method: "GET", Header: http.Header{"": {"v"}}}, egress.ErrMalformed},
		{"smuggled", egress.Request{Method: "GET", Header: http.Header{"X": {"v\r\nHost: evil"}}}, egress.ErrMalformed},
		{"smuggled by the host's", egress.Request{Method: "GET", Header: http.Header{"Host": {"v\nX: y"}}}, egress.ErrMalformed},
		{"NUL", egress.Request{Method: "GET", Header: http.Header{"X": {"v\x00"}}}, egress.ErrMalformed},
		{"headers", egress.Request{Method: "GET", Header: many}, egress.ErrTooLarge},
		{"header", egress.Request{Method: "GET", Header: http.Header{"X": {strings.Repeat("v", 64<<10)}}}, egress.ErrTooLarge},
		{"body", egress.Request{Method: "POST", Body: make([]byte, 11)}, egress.ErrTooLarge},
		{"URL", egress.Request{Method: "GET", URL: s.URL + "/" + strings.Repeat("x", 16<<10)}, egress.ErrTooLarge},
	} {
		if tt.r.URL == "" {
			tt.r.URL = s.URL
		}
		if _, err := s.client.Do(t.Context(), tt.r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestNotAllowed(t *testing.T) {
	s := newSite(t, false, func(http.ResponseWriter, *http.Request) {}, func(_ *site, o *egress.Options) { o.Allow = targets(t, "api.example.com") })
	_, err := s.get(t, "/path?token=secret")
	if !errors.Is(err, egress.ErrNotGranted) || !strings.Contains(err.Error(), s.URL+" is not in http.allow") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	if !slices.Equal(s.results(), []string{"refused"}) {
		t.Errorf("counted %v", s.results())
	}
	// The zero value allows nothing.
	client := egress.New(egress.Options{})
	if _, err := client.Do(t.Context(), egress.Request{Method: "GET", URL: "https://example.com"}); !errors.Is(err, egress.ErrNotGranted) {
		t.Errorf("%v", err)
	}
}

func TestResponseLimits(t *testing.T) {
	bomb := func(w io.Writer) {
		z := gzip.NewWriter(w)
		z.Write(make([]byte, 10<<20))
		z.Close()
	}
	s := newSite(t, false, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/exact":
			w.Write(make([]byte, 1000))
		case "/over":
			w.Write(make([]byte, 1001))
		case "/stream":
			for i := 0; i < 1000 && r.Context().Err() == nil; i++ {
				w.Write(make([]byte, 100))
				w.(http.Flusher).Flush()
			}
		case "/claims":
			w.Header().Set("Content-Length", "1000000000000")
		case "/head":
			w.Header().Set("Content-Length", "1000000")
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			bomb(w)
		case "/header":
			w.Header().Set("X", strings.Repeat("x", 200<<10))
		case "/cut":
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
			conn.Close()
		}
	}, func(_ *site, o *egress.Options) { o.MaxResponse = 1000 })
	for path, want := range map[string]error{
		"/exact": nil, "/empty": nil, "/over": egress.ErrTooLarge, "/stream": egress.ErrTooLarge, "/claims": egress.ErrTooLarge,
		"/bomb": egress.ErrTooLarge, "/header": egress.ErrUnavailable, "/cut": egress.ErrUnavailable,
	} {
		if _, err := s.get(t, path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if r, err := s.client.Do(t.Context(), egress.Request{Method: "HEAD", URL: s.URL + "/head"}); err != nil || len(r.Body) != 0 || r.Header.Get("Content-Length") != "1000000" {
		t.Errorf("HEAD: %+v, %v", r, err)
	}
}

func TestTimeouts(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-release
	}, func(_ *site, o *egress.Options) { o.Timeout = 50 * time.Millisecond })
	defer close(release)
	if _, err := s.get(t, "/"); !errors.Is(err, egress.ErrTimedOut) {
		t.Errorf("the client's own timeout: %v", err)
	}
	slow := newSite(t, false, func(http.ResponseWriter, *http.Request) { <-release }, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := slow.client.Do(ctx, egress.Request{Method: "GET", URL: slow.URL}); !errors.Is(err, egress.ErrTimedOut) {
		t.Errorf("the context's deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := slow.client.Do(ctx, egress.Request{Method: "GET", URL: slow.URL}); !errors.Is(err, egress.ErrUnavailable) {
		t.Errorf("a context that ended: %v", err)
	}
	if !slices.Equal(slow.results(), []string{"failed", "failed"}) {
		t.Errorf("counted %v", slow.results())
	}
}

func TestTLS(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }
	trusted := newSite(t, true, h, nil)
	if r, err := trusted.get(t, "/"); err != nil || string(r.Body) != "HTTP/2.0" {
		t.Errorf("%+v, %v", r, err)
	}
	for name, change := range map[string]func(*site, *egress.Options){
		"the system's certificates": func(_ *site, o *egress.Options) { o.Roots = nil },
		"no certificates":           func(_ *site, o *egress.Options) { o.Roots = x509.NewCertPool() },
		"another name": func(s *site, o *egress.Options) {
			s.URL = strings.Replace(s.URL, "example.com", "localhost", 1)
			o.Allow = targets(t, s.URL)
		},
		"an old version": func(s *site, _ *egress.Options) { s.TLS.MaxVersion = tls.VersionTLS11 },
	} {
		s := newSite(t, true, h, change)
		if _, err := s.get(t, "/"); !errors.Is(err, egress.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The environment's proxy is not asked, for itself or for what it would reach.
func TestNoProxy(t *testing.T) {
	c := newCanary(t, "127.0.0.1")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:"+c.ports["127.0.0.1"])
	}
	s := newSite(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
	if _, err := s.get(t, "/"); err != nil {
		t.Error(err)
	}
	c.silent(t)
}

func TestConnectionsAreKept(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	s := newSite(t, false, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.RemoteAddr] = true
	}, func(_ *site, o *egress.Options) { o.MaxConnections = 2 })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if _, err := s.get(t, "/"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(seen) > 2 {
		t.Errorf("%d connections", len(seen))
	}
}

// injected is what the server at path got of a header.
type injected struct {
	mu  sync.Mutex
	got map[string]http.Header
}

func (i *injected) at(path string) http.Header {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.got[path]
}

func (i *injected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.got[r.URL.Path] = r.Header.Clone()
	if to := r.URL.Query().Get("to"); to != "" {
		http.Redirect(w, r, to, http.StatusFound)
	}
}

const planted = "Bearer hunter2-planted"

func TestInjectedHeaders(t *testing.T) {
	i := &injected{got: map[string]http.Header{}}
	plain := newSite(t, false, i.ServeHTTP, nil)
	s := newSite(t, true, i.ServeHTTP, func(s *site, o *egress.Options) {
		o.Allow = append(o.Allow, targets(t, plain.URL, strings.Replace(s.URL, "example", "www.example", 1))...)
		o.Inject = map[egress.Target]map[string]string{targets(t, s.URL)[0]: {"Authorization": planted, "X-Key": "k"}}
	})
	www := strings.Replace(s.URL, "example", "www.example", 1)
	do := func(url string, own http.Header) error {
		_, err := s.client.Do(t.Context(), egress.Request{Method: "GET", URL: url, Header: own})
		return err
	}
	guest := http.Header{"authorization": {"guest"}, "x-key": {"guest"}, "X-Other": {"o"}, "Cookie": {"c"}}
	before := fmt.Sprint(guest)
	if err := do(s.URL+"/first", guest); err != nil {
		t.Fatal(err)
	}
	if h := i.at("/first"); h.Get("Authorization") != planted || len(h["Authorization"]) != 1 || h.Get("X-Key") != "k" || h.Get("X-Other") != "o" {
		t.Errorf("sent %v", h)
	}
	// A redirect carries nothing that was injected, nor the guest's own in its place.
	if err := do(s.URL+"/a?to=/b%3Fsecret", guest); err != nil {
		t.Fatal(err)
	}
	if h := i.at("/b"); h == nil || h["Authorization"] != nil || h["X-Key"] != nil || h["Referer"] != nil || h.Get("Cookie") != "c" {
		t.Errorf("after a redirect %v", h)
	}
	// To another server even the guest's credentials stay behind.
	if err := do(s.URL+"/c?to="+www+"/d", guest); err != nil {
		t.Fatal(err)
	}
	if h := i.at("/d"); h == nil || h["Authorization"] != nil || h["Cookie"] != nil || h.Get("X-Other") != "o" {
		t.Errorf("on another server %v", h)
	}
	// A server without injections gets what the guest says.
	if err := do(www+"/e", guest); err != nil {
		t.Fatal(err)
	}
	if h := i.at("/e"); h.Get("Authorization") != "guest" {
		t.Errorf("without injection %v", h)
	}
	// Nothing follows from https to http, allowed or not.
	if err := do(s.URL+"/f?to="+plain.URL+"/g", nil); !errors.Is(err, egress.ErrNotGranted) || i.at("/g") != nil {
		t.Errorf("from https to http: %v", err)
	}
	if fmt.Sprint(guest) != before {
		t.Errorf("the guest's header became %v", guest)
	}
}

// A server's words may hold what it was sent; errors do not.
func TestErrorsAreScrubbed(t *testing.T) {
	s := newSite(t, true, func(http.ResponseWriter, *http.Request) {}, func(s *site, o *egress.Options) {
		// HTTP/1 only, to answer with nonsense.
		s.Server.Close()
		cert := s.TLS.Certificates
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: cert})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				head := make([]byte, 4096)
				n, _ := conn.Read(head)
				_, value, _ := bytes.Cut(head[:n], []byte("Authorization: "))
				value, _, _ = bytes.Cut(value, []byte("\r\n"))
				_, value, _ = bytes.Cut(value, []byte(" "))
				fmt.Fprintf(conn, "HTTP/1.1 %s\r\n\r\n", value)
				conn.Close()
			}
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		s.URL = "https://example.com:" + port
		o.Allow = targets(t, s.URL)
		o.Inject = map[egress.Target]map[string]string{o.Allow[0]: {"Authorization": planted}}
	})
	_, err := s.get(t, "/?token=secret")
	if !errors.Is(err, egress.ErrUnavailable) || !strings.Contains(err.Error(), "[redacted]") {
		t.Errorf("the server's words are not in %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "hunter2") || strings.Contains(text, "secret") {
		t.Errorf("shown in %s", text)
	}
}
