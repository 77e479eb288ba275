package egress_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// dns is a name server with the answers a test gives it.
type dns struct {
	mu    sync.Mutex
	zone  map[string][]string // addresses by name, without the dot at the end
	then  map[string][]string // what the name has from its second query on
	asked map[string]int
}

// newDNS starts a name server and returns a resolver that asks no other.
func newDNS(t testing.TB, zone map[string][]string) (*dns, *net.Resolver) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dns{zone: zone, then: map[string][]string{}, asked: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.serve(conn)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return d, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (d *dns) serve(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := d.reply(buf[:n]); reply != nil {
			conn.WriteTo(reply, from)
		}
	}
}

const (
	typeA    = 1
	typeAAAA = 28
)

func (d *dns) reply(query []byte) []byte {
	if len(query) < 12 {
		return nil
	}
	var labels []string
	at := 12
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		labels = append(labels, string(query[at+1:end]))
		at = end
	}
	question := query[12 : at+5]
	kind := binary.BigEndian.Uint16(query[at+1:])
	addrs, known := d.lookup(strings.ToLower(strings.Join(labels, ".")), kind)

	reply := append([]byte{}, query[:2]...)
	reply = append(reply, 0x85, 0x80, 0, 1, 0, byte(len(addrs)), 0, 0, 0, 0)
	if !known {
		reply[3] |= 3 // no such name
	}
	reply = append(reply, question...)
	for _, addr := range addrs {
		data := addr.AsSlice()
		reply = append(reply, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
		reply = append(reply, data...)
	}
	return reply
}

func (d *dns) lookup(name string, kind uint16) (addrs []netip.Addr, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	texts, known := d.zone[name]
	if later, ok := d.then[name]; ok && kind == typeA {
		if d.asked[name]++; d.asked[name] > 1 {
			texts = later
		}
	}
	for _, text := range texts {
		addr := netip.MustParseAddr(text)
		if addr.Is4() == (kind == typeA) && (kind == typeA || kind == typeAAAA) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, known
}
