package egress_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/guesthand/guesthand/host/egress"
)

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]string{
		"api.example.com":               "api.example.com",
		"API.Example.COM.":              "api.example.com",
		"*.cdn.example":                 "*.cdn.example",
		"https://api.example.com":       "api.example.com",
		"https://api.example.com:443":   "api.example.com",
		"HTTPS://api.example.com:08443": "https://api.example.com:8443",
		"http://api.example.com":        "http://api.example.com",
		"http://api.example.com:80":     "http://api.example.com",
		"http://api.example.com:443":    "http://api.example.com:443",
		"https://*.cdn.example:8443":    "https://*.cdn.example:8443",
		"xn--bcher-kva.example":         "xn--bcher-kva.example",
		"under_score.example":           "under_score.example",
		"localhost":                     "localhost",
		"10.1.2.3":                      "10.1.2.3",
		"http://10.1.2.3:8080":          "http://10.1.2.3:8080",
		"[2001:DB8::0:1]":               "[2001:db8::1]",
		"http://[::1]:8080":             "http://[::1]:8080",
		"http://[::ffff:10.1.2.3]":      "http://10.1.2.3",
	} {
		got, err := egress.ParseTarget(in)
		if err != nil || got.String() != want {
			t.Errorf("%s: %q, %v, want %q", in, got, err, want)
			continue
		}
		again, err := egress.ParseTarget(got.String())
		if err != nil || again != got {
			t.Errorf("%s: read again it is %q, %v", got, again, err)
		}
		if text, err := json.Marshal(map[egress.Target]int{got: 1}); err != nil || string(text) != `{"`+want+`":1}` {
			t.Errorf("%s: JSON %s, %v", in, text, err)
		}
	}
	for _, in := range []string{"", ".", "*", "*.", "**.a.example", "a.*.example", "*a.example", "a..example", ".a.example",
		"a.example:443", "[::1]:443", "::1", "ftp://a.example", "://a.example", "https://", "https:///", "a.example/",
		"https://a.example/path", "https://u@a.example", "a.example?x", "a.example#x", "a.example\\", "a b", "a\tb", "a%2eb",
		"bücher.example", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "1.2.3.4.5", "300.1.1.1", "*.1.2.3.4", "*.[::1]",
		"[fe80::1%eth0]", "[::1", "[1.2.3.4]", "[]", "http://[::1]8080", "http://a.example:0", "http://a.example:65536",
		"http://a.example:+1", "http://a.example:x", "http://a.example:1:2"} {
		if got, err := egress.ParseTarget(in); err == nil {
			t.Errorf("%q passes as %q", in, got)
		}
	}
}

func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		target, server string
		want           bool
	}{
		{"a.example", "https://a.example", true},
		{"a.example", "https://A.EXAMPLE.:443", true},
		{"a.example", "http://a.example", false},
		{"a.example", "http://a.example:443", false},
		{"a.example", "https://a.example:8443", false},
		{"a.example", "b.a.example", false},
		{"a.example", "xa.example", false},
		{"*.a.example", "b.a.example", true},
		{"*.a.example", "c.b.a.example", true},
		{"*.a.example", "a.example", false},
		{"*.a.example", "xa.example", false},
		{"*.a.example", "http://b.a.example", false},
		{"http://*.a.example:8080", "http://b.a.example:8080", true},
		{"http://*.a.example:8080", "http://b.a.example", false},
		{"http://10.1.2.3", "http://[::ffff:a01:203]", true},
		{"http://10.1.2.3", "http://10.1.2.33", false},
		{"http://[::1]", "http://[0::1]", true},
	} {
		list := targets(t, tt.target, tt.server)
		if got := list[0].Allows(list[1]); got != tt.want {
			t.Errorf("%s allows %s: %v", tt.target, tt.server, got)
		}
	}
}

func TestRefuses(t *testing.T) {
	open := egress.Options{Private: prefixes("0.0.0.0/0", "::/0")} // the most careless operator
	var closed egress.Options
	for _, tt := range []struct {
		addr                  string
		reached, ifAllPrivate bool
	}{
		{"8.8.8.8", true, true},
		{"::ffff:8.8.8.8", true, true},
		{"2606:4700::1111", true, true},
		{"64:ff9b::808:808", true, true}, // how a network without IPv4 reaches 8.8.8.8
		{"10.0.0.0", false, true},
		{"172.15.255.255", true, true},
		{"172.16.0.0", false, true},
		{"172.32.0.0", true, true},
		{"127.255.255.255", false, true},
		{"100.63.255.255", true, true},
		{"100.127.255.255", false, true},
		{"100.128.0.0", true, true},
		{"198.19.255.255", false, true},
		{"::1", false, true},
		{"fd00::1", false, true},
		{"fec0::1", false, true},
		{"2001:db8::", false, true},
		{"2001:2::1", false, true},
		{"4000::1", false, true}, // given out to nobody
		{"100::1", false, true},
		{"64:ff9b:1::a00:1", false, true},
		{"64:ff9b:1::a9fe:a9fe", false, false},
		{"64:ff9b::a00:1", false, false},
		{"64:ff9b::a9fe:a9fe", false, false},
		{"0.0.0.0", false, false},
		{"::", false, false},
		{"169.254.0.1", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"fe80::1", false, false},
		{"febf::1", false, false},
		{"fe80::1%eth0", false, false},
		{"168.63.129.16", false, false},
		{"100.100.100.200", false, false},
		{"192.0.0.192", false, false},
		{"fd00:ec2::254", false, false},
		{"fd20:ce::254", false, false},
		{"224.0.0.251", false, false},
		{"255.255.255.255", false, false},
		{"ff05::2", false, false},
		{"2002:7f00:1::", false, false},
		{"2001::1", false, false},
		{"::10.0.0.1", false, false},
		{"::ffff:0:10.0.0.1", false, false},
	} {
		addr := netip.MustParseAddr(tt.addr)
		if got := closed.Refuses(addr); (got == "") != tt.reached {
			t.Errorf("%s: %q", tt.addr, got)
		}
		if got := open.Refuses(addr); (got == "") != tt.ifAllPrivate {
			t.Errorf("%s where all that is private is allowed: %q", tt.addr, got)
		}
	}
	if closed.Refuses(netip.Addr{}) == "" || open.Refuses(netip.Addr{}) == "" {
		t.Error("no address at all is reached")
	}
}

func TestCheckPrivate(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.0/8": true, "127.0.0.1/32": true, "::1/128": true, "0.0.0.0/0": true, "fc00::/7": true, "8.8.8.8/32": true,
		"169.254.0.0/16": false, "169.254.169.254/32": false, "fe80::/64": false, "fd00:ec2::254/128": false,
		"10.0.0.1/8": false, "::ffff:10.0.0.0/104": false, "224.0.0.0/4": false,
	} {
		if err := egress.CheckPrivate(netip.MustParsePrefix(text)); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
