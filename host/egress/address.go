package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// reach is who may be reached at an address.
type reach int

const (
	never   reach = iota + 1 // nobody's server, or one that hands out credentials
	private                  // only where Options.Private says so
	public
)

// ranges are prefixes and what they are for.
type ranges []struct {
	prefix netip.Prefix
	reach  reach
	what   string
}

// special are the addresses that are not simply public. The first match counts. They are
// those of the IANA's special-purpose registries, with the metadata services of the clouds that
// stand outside link-local ranges.
var special = ranges{
	{p("0.0.0.0/8"), never, "unspecified"}, // connects to this machine on some systems
	{p("169.254.0.0/16"), never, "link-local"},
	{p("100.100.100.200/32"), never, "metadata"}, // Alibaba
	{p("168.63.129.16/32"), never, "metadata"},   // Azure
	{p("192.0.0.192/32"), never, "metadata"},     // Oracle
	{p("224.0.0.0/4"), never, "multicast"},
	{p("240.0.0.0/4"), never, "reserved"}, // and broadcast
	{p("10.0.0.0/8"), private, "private"},
	{p("100.64.0.0/10"), private, "carrier-grade NAT"},
	{p("127.0.0.0/8"), private, "loopback"},
	{p("172.16.0.0/12"), private, "private"},
	{p("192.0.0.0/24"), private, "special"},
	{p("192.0.2.0/24"), private, "documentation"},
	{p("192.88.99.0/24"), never, "6to4"},
	{p("192.168.0.0/16"), private, "private"},
	{p("198.18.0.0/15"), private, "benchmark"},
	{p("198.51.100.0/24"), private, "documentation"},
	{p("203.0.113.0/24"), private, "documentation"},

	{p("::/128"), never, "unspecified"},
	{p("::1/128"), private, "loopback"},
	{p("::/96"), never, "IPv4-compatible"},
	{p("::ffff:0:0:0/96"), never, "IPv4-translated"},
	{p("64:ff9b:1::/48"), private, "local NAT64"},
	{p("2001::/32"), never, "Teredo"},
	{p("2001::/23"), private, "special"}, // benchmark and ORCHID among them
	{p("2001:db8::/32"), private, "documentation"},
	{p("2002::/16"), never, "6to4"},
	{p("3fff::/20"), private, "documentation"},
	{p("fd00:ec2::/32"), never, "metadata"},   // AWS
	{p("fd20:ce::/32"), never, "metadata"},    // Google
	{p("fd00:c1::/32"), never, "metadata"},    // Oracle
	{p("fd00:42::42/128"), never, "metadata"}, // Scaleway
	{p("fe80::/10"), never, "link-local"},     //
	{p("ff00::/8"), never, "multicast"},       //
	{p("2000::/3"), public, "public"},         // all that is given out
	{p("::/0"), private, "not public"},        // unique local and site-local among them
	{p("0.0.0.0/0"), public, "public"},        //
}

func p(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Translation prefixes, whose last 32 bits are the IPv4 address that answers. A network that
// has IPv6 only reaches public IPv4 servers through the first.
var (
	nat64      = p("64:ff9b::/96")
	localNAT64 = p("64:ff9b:1::/48")
)

// reachOf says who may be reached at an address, and what kind of one it is.
func reachOf(addr netip.Addr) (reach, string) {
	addr = addr.Unmap()
	if addr.Zone() != "" {
		return never, "link-local"
	}
	if nat64.Contains(addr) {
		r, what := reachOf(embedded(addr))
		if r == private {
			r = never // an odd way to a near server
		}
		return r, what + " behind NAT64"
	}
	if localNAT64.Contains(addr) {
		if r, what := reachOf(embedded(addr)); r == never {
			return never, what + " behind NAT64"
		}
	}
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return s.reach, s.what
		}
	}
	return never, "invalid"
}

func embedded(addr netip.Addr) netip.Addr {
	b := addr.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// CheckPrivate says why a network cannot be one of Options.Private, or nil.
func CheckPrivate(network netip.Prefix) error {
	if !network.IsValid() || network.Addr().Zone() != "" || network.Addr().Is4In6() {
		return errors.New("is no network such as 10.0.0.0/8")
	}
	if network != network.Masked() {
		return fmt.Errorf("has bits beyond its length; write %s", network.Masked())
	}
	for _, s := range special {
		if !s.prefix.Overlaps(network) || s.prefix.Bits() > network.Bits() {
			continue
		}
		if s.reach == never {
			return fmt.Errorf("is %s, which is never reached", s.what)
		}
		break
	}
	return nil
}

// Refuses says why a server at the address is not reached; "" where it may be.
func (o *Options) Refuses(addr netip.Addr) string {
	addr = addr.Unmap()
	r, what := reachOf(addr)
	switch {
	case r == public, r == private && slices.ContainsFunc(o.Private, func(n netip.Prefix) bool { return n.Contains(addr) }):
		return ""
	case r == private:
		return fmt.Sprintf("the address %s is %s and not in http.allow_private", addr, what)
	}
	return fmt.Sprintf("the address %s is %s, which is never reached", addr, what)
}

func (o *Options) check(addr netip.Addr) error {
	if reason := o.Refuses(addr); reason != "" {
		return fmt.Errorf("%w: %s", ErrNotGranted, reason)
	}
	return nil
}
