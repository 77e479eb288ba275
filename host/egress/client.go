package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Bounds that no configuration changes.
const (
	maxRedirects      = 10
	maxHeaders        = 100       // lines of a request
	maxHeaderBytes    = 64 << 10  // of a request
	maxResponseHeader = 128 << 10 // bytes of one response, redirects and 1xx each
	connectTimeout    = 10 * time.Second
	idleTimeout       = 60 * time.Second
	pingAfter         = 30 * time.Second // without a sign of life on an HTTP/2 connection
)

// userAgent is sent where the guest has none.
const userAgent = "guesthand"

// Client makes one handler's requests. Its methods may be called concurrently.
type Client struct {
	o         Options
	http      *http.Client
	transport *http.Transport
	scrub     *strings.Replacer // takes injected values out of errors
}

// New makes a client. Close gives its connections up.
func New(o Options) *Client {
	c := &Client{o: o.withDefaults(), scrub: scrubber(o.Inject)}
	dialer := &net.Dialer{Timeout: connectTimeout, Resolver: o.Resolver, ControlContext: c.dialling}
	c.transport = &http.Transport{
		Proxy:                  nil, // the environment has no say
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
		TLSHandshakeTimeout:    connectTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: connectTimeout},
		MaxIdleConns:           c.o.MaxConnections,
		MaxIdleConnsPerHost:    c.o.MaxConnections,
		MaxConnsPerHost:        c.o.MaxConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	c.http = &http.Client{Transport: guard{c}, CheckRedirect: checkRedirect}
	return c
}

// Close closes the connections that are idle; those in use follow when they have been.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// dialling looks at each address that is about to be connected to. Names were resolved before,
// so nothing can come between this look and the connection.
func (c *Client) dialling(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: no address: %w", ErrNotGranted, err)
	}
	return c.o.check(to.Addr())
}

// Do makes a request and follows redirects. It returns when ctx ends at the latest. A response
// of whatever status is no error.
func (c *Client) Do(ctx context.Context, r Request) (*Response, error) {
	response, err := c.do(ctx, r)
	switch {
	case err == nil:
		c.o.OnCall(string('0'+byte(response.Status/100)) + "xx")
	case errors.Is(err, ErrNotGranted), errors.Is(err, ErrMalformed):
		c.o.OnCall("refused")
	default:
		c.o.OnCall("failed")
	}
	return response, err
}

func (c *Client) do(ctx context.Context, r Request) (*Response, error) {
	req, err := c.request(ctx, r)
	if err != nil {
		return nil, err
	}
	if c.o.Timeout > 0 {
		ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
		req = req.WithContext(ctx)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.failure(err)
	}
	defer res.Body.Close()
	body, err := c.read(res)
	if err != nil {
		return nil, c.failure(err)
	}
	return &Response{Status: res.StatusCode, Header: res.Header, Body: body}, nil
}

// read reads the body, which may be compressed and claim any length.
func (c *Client) read(res *http.Response) ([]byte, error) {
	if res.ContentLength > int64(c.o.MaxResponse) && res.Request.Method != http.MethodHead {
		return nil, c.tooLarge(res)
	}
	var body bytes.Buffer
	body.Grow(int(min(max(res.ContentLength, 0), 64<<10)) + bytes.MinRead)
	if _, err := body.ReadFrom(io.LimitReader(res.Body, int64(c.o.MaxResponse)+1)); err != nil {
		return nil, err
	}
	if body.Len() > c.o.MaxResponse {
		return nil, c.tooLarge(res)
	}
	return body.Bytes(), nil
}

func (c *Client) tooLarge(res *http.Response) error {
	return fmt.Errorf("%w: the response of %s is over %d bytes", ErrTooLarge, res.Request.URL.Host, c.o.MaxResponse)
}

// request is what the guest asks for as net/http has it. Whether it may be sent is the guard's
// to say.
func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	switch {
	case !isToken(r.Method):
		return nil, fmt.Errorf("%w: %.20q is no method", ErrMalformed, r.Method)
	case slices.ContainsFunc(noMethods, func(m string) bool { return strings.EqualFold(m, r.Method) }):
		return nil, fmt.Errorf("%w: the method %s is not for handlers", ErrMalformed, r.Method)
	case len(r.URL) > maxURL:
		return nil, fmt.Errorf("%w: the URL is over %d bytes", ErrTooLarge, maxURL)
	case len(r.Body) > c.o.MaxRequest:
		return nil, fmt.Errorf("%w: the body of %d bytes is over %d", ErrTooLarge, len(r.Body), c.o.MaxRequest)
	}
	header, err := requestHeader(r.Header)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if len(r.Body) > 0 {
		body = bytes.NewReader(r.Body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, body)
	if err != nil {
		return nil, fmt.Errorf("%w: this is no URL", ErrMalformed) // the error has the URL in it
	}
	req.Header = header
	return req, nil
}

// noMethods are those that answer with the request, injected headers and all, or make a tunnel.
var noMethods = []string{http.MethodTrace, "TRACK", http.MethodConnect}

// hostsHeaders belong to the connection or to the host.
var hostsHeaders = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Host": true, "Http2-Settings": true,
	"Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// requestHeader is the guest's header under canonical names, without what is the host's. It is
// the guest's own map where that is in order, as it mostly is.
func requestHeader(guest http.Header) (http.Header, error) {
	inOrder, count, size := guest != nil, 0, 0
	for name, values := range guest {
		if !isToken(name) {
			return nil, fmt.Errorf("%w: %.40q is no header's name", ErrMalformed, name)
		}
		canonical := http.CanonicalHeaderKey(name)
		inOrder = inOrder && canonical == name && !hostsHeaders[name]
		for _, value := range values {
			count, size = count+1, size+len(name)+len(value)
			switch {
			case !ValidHeaderValue(value):
				return nil, fmt.Errorf("%w: the value of header %.40q", ErrMalformed, name)
			case count > maxHeaders || size > maxHeaderBytes:
				return nil, fmt.Errorf("%w: headers are at most %d, and %d bytes", ErrTooLarge, maxHeaders, maxHeaderBytes)
			}
		}
	}
	header := guest
	if !inOrder {
		header = make(http.Header, len(guest)+1)
		for name, values := range guest {
			if canonical := http.CanonicalHeaderKey(name); !hostsHeaders[canonical] {
				header[canonical] = append(header[canonical], values...)
			}
		}
	}
	if _, own := header["User-Agent"]; !own {
		header["User-Agent"] = []string{userAgent}
	}
	return header, nil
}

// ValidHeaderName tells whether a header may be injected under that name: it is one, and not
// the host's own.
func ValidHeaderName(name string) bool {
	return isToken(name) && !hostsHeaders[http.CanonicalHeaderKey(name)]
}

// ValidHeaderValue tells whether HTTP can carry a value: anything but control characters.
func ValidHeaderValue(value string) bool {
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// isToken tells whether s is a token as RFC 9110 has it: a method, or a header's name.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// scrubber takes injected values out of a text, quoted ones and their words too: of "Bearer x"
// it is the x that matters.
func scrubber(inject map[Target]map[string]string) *strings.Replacer {
	var pairs []string
	for _, headers := range inject {
		for _, value := range headers {
			for _, s := range append([]string{value}, strings.Fields(value)...) {
				if s == value || len(s) >= minScrubbed {
					quoted := strconv.Quote(s)
					pairs = append(pairs, s, redacted, quoted[1:len(quoted)-1], redacted)
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

const (
	redacted    = "[redacted]"
	minScrubbed = 6 // letters of a word; shorter ones are in any text
)

// failure is an error in the words of this package: no URL, no injected value.
func (c *Client) failure(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	for _, known := range []error{ErrNotGranted, ErrTooLarge, ErrMalformed, ErrUnavailable} {
		if errors.Is(err, known) {
			return err
		}
	}
	kind := ErrUnavailable
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		kind = ErrTimedOut
	}
	// A server's words may be in it.
	return fmt.Errorf("%w: %s", kind, c.scrub.Replace(err.Error()))
}
