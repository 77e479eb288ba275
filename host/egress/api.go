// Package egress makes handlers' HTTP requests: net/http with a guard around it. What a
// configuration does not allow is not reached, whatever a guest, a name server or a
// redirecting server says.
//
// The guard stands in two places. Every URL, that of a redirect too, is brought into one
// canonical form and compared with the allowed targets before anything is resolved. And every
// address is looked at when it is dialled, after names were resolved, so that no name, spelling
// or translation prefix leads to a private network.
package egress

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// What can come of a request beside a response. Errors of Do wrap one of these; their text
// holds neither query strings nor injected values.
var (
	// ErrNotGranted: the configuration does not allow the target, or the address behind it.
	ErrNotGranted = errors.New("not granted")
	// ErrTooLarge: the request or the response is over a limit.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable: no connection, no TLS, or no whole response.
	ErrUnavailable = errors.New("not available")
	// ErrMalformed: no such request can be made.
	ErrMalformed = errors.New("malformed")
	// ErrTimedOut: ctx's deadline, Options.Timeout, or the time to connect is over.
	ErrTimedOut = errors.New("timed out")
)

// Request is what a guest asks for.
type Request struct {
	Method, URL string
	// Header is the guest's, under any spelling. What belongs to the connection rather than the
	// request (Host, Content-Length, Connection and the like) is the host's to say and ignored.
	// Do takes the map over.
	Header http.Header
	// Body is read after Do has returned, in unlucky cases: it must not change any more.
	Body []byte
}

// Response is a server's answer, read as a whole.
type Response struct {
	Status int // at least 200
	// Header is under canonical names.
	Header http.Header
	Body   []byte
}

// Options configures a Client. The zero value allows nothing.
type Options struct {
	Allow []Target
	// Private are the private networks that may be reached, as CheckPrivate allows.
	Private []netip.Prefix
	// Inject are headers that the guest neither sees nor sets, by the target they are sent to:
	// exact and https, as Target.CheckInject allows.
	Inject map[Target]map[string]string
	Roots  *x509.CertPool // the certificates that are trusted; nil: the system's
	// MaxRequest and MaxResponse bound bodies, bytes; 8 MiB. The response's counts as the guest
	// gets it, after decompression.
	MaxRequest, MaxResponse int
	Timeout                 time.Duration // of one request, redirects included; 0: ctx's deadline only
	MaxConnections          int           // to one server, and kept idle in all; 100
	Resolver                *net.Resolver // nil: the system's
	// OnCall is told how each request ended: the class of the status, "2xx" to "5xx", "refused"
	// for what is not granted or malformed, or "failed". May be nil.
	OnCall func(result string)
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.MaxRequest, 8<<20)
	def(&o.MaxResponse, 8<<20)
	def(&o.MaxConnections, 100)
	if o.OnCall == nil {
		o.OnCall = func(string) {}
	}
	return o
}
