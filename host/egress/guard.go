package egress

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// guard stands between net/http's client, which follows redirects, and its transport: every
// request passes here, whoever asked for it.
type guard struct{ c *Client }

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	out, err := g.c.guarded(req)
	if err != nil {
		if req.Body != nil {
			err = errors.Join(err, req.Body.Close())
		}
		return nil, err
	}
	res, err := g.c.transport.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	// The client's own error for a bad Location would have it in its text.
	if location := res.Header.Get("Location"); location != "" && res.StatusCode/100 == 3 {
		if _, err := url.Parse(location); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %s redirects to what is no URL", ErrUnavailable, out.URL.Host), res.Body.Close())
		}
	}
	return res, nil
}

// guarded is the request as it is sent, or why it is not.
func (c *Client) guarded(req *http.Request) (*http.Request, error) {
	u := *req.URL
	server, err := canonical(&u)
	if err != nil {
		return nil, err
	}
	if !c.allowed(server) {
		return nil, fmt.Errorf("%w: %s is not in http.allow", ErrNotGranted, server)
	}
	// A name is looked at when it is dialled; an address also when a connection is there already.
	if addr, literal := server.Addr(); literal {
		if err := c.o.check(addr); err != nil {
			return nil, err
		}
	}
	injected := c.o.Inject[server]
	if len(injected) == 0 && u == *req.URL && u.Host == req.Host {
		return req, nil // it is as it should be
	}
	out := req.WithContext(req.Context()) // a copy: the client goes on with its own
	out.URL, out.Host = &u, u.Host
	if len(injected) > 0 {
		out.Header = req.Header.Clone()
		for name, value := range injected {
			out.Header.Del(name)
			if req.Response == nil { // no redirect led here
				out.Header.Set(name, value)
			}
		}
	}
	return out, nil
}

func (c *Client) allowed(server Target) bool {
	for _, t := range c.o.Allow {
		if t.Allows(server) {
			return true
		}
	}
	return false
}

// credentials are the guest's headers for one server, which another one is not told.
var credentials = []string{"Authorization", "Cookie", "Cookie2", "Www-Authenticate"}

// checkRedirect says whether a redirect is followed. Where it leads, the guard looks at.
func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w: more than %d redirects", ErrUnavailable, maxRedirects)
	case last.URL.Scheme == "https" && req.URL.Scheme != "https":
		return fmt.Errorf("%w: a redirect from https to %.10q", ErrNotGranted, req.URL.Scheme)
	}
	req.Header.Del("Referer") // the URL it came from may hold what is not for others
	for _, before := range via {
		if before.URL.Scheme != req.URL.Scheme || before.URL.Host != req.URL.Host {
			for _, name := range credentials {
				req.Header.Del(name)
			}
		}
	}
	return nil
}
