package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// Runs are followed as they end, each once, until an interrupt.
func TestRunsFollow(t *testing.T) {
	s := newSite(t, "[brokers.b]\ndriver = \"embedded\"\n[queues.q]\nbroker = \"b\"\nretry = { max_attempts = 2, base = \"10ms\" }\n[admin]\nlisten = \"none\"\n")
	s.puppet("puppet")
	s.start()
	want := map[string]int{s.sendTo("q", "puppet", "0"): 1}
	hosttest.Eventually(t, patience, "a run", func() bool { return len(s.runs()) == 1 })
	c := s.command("runs", "--follow", "--json")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	rows := make(chan ledger.Row)
	go func() {
		defer close(rows)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r ledger.Row
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				rows <- r
			}
		}
	}()
	next := func() ledger.Row {
		t.Helper()
		select {
		case r := <-rows:
			return r
		case <-time.After(patience):
			t.Fatal("no further run is shown")
			return ledger.Row{}
		}
	}
	got := map[string]int{next().ID: 1} // what was there before
	want[s.sendTo("q", "puppet", "1|0")] = 2
	want[s.sendTo("q", "puppet", "12")] = 1
	for range 3 {
		got[next().ID]++
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if r, more := <-rows; more {
		t.Errorf("a run twice: %+v", r)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

// certify writes a certificate for 127.0.0.1 and its key.
func (s *site) certify(serial int64) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "guesthand test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

// The API over TLS: commands reach it, plain HTTP does not, and a renewed certificate is used
// without a restart.
func TestAdminTLS(t *testing.T) {
	address := freeAddress(t)
	s := newSite(t, fmt.Sprintf("[brokers.b]\ndriver = \"embedded\"\n[queues.q]\nbroker = \"b\"\nretry = {}\n"+
		"[admin]\nlisten = %q\ncert = \"cert.pem\"\nkey = \"key.pem\"\n", address))
	if _, talk, status := s.do("run"); status != exitUsage || !strings.Contains(talk, "cert.pem") {
		t.Errorf("run without the files: status %d, %s", status, talk)
	}
	s.certify(1)
	s.start()
	t.Setenv("SSL_CERT_FILE", filepath.Join(s.dir, "cert.pem"))
	if out := s.must("--host", "https://"+address, "queues"); !strings.Contains(out, "embedded") {
		t.Error(out)
	}
	if _, _, status := s.do("--host", "http://"+address, "queues"); status == 0 {
		t.Error("plain HTTP is answered")
	}
	serial := func() int64 {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // only its number matters here
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Errorf("certificate %d", n)
	}
	s.certify(2)
	later := time.Now().Add(time.Minute) // a file system may count whole seconds
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.Chtimes(filepath.Join(s.dir, name), later, later); err != nil {
			t.Fatal(err)
		}
	}
	hosttest.Eventually(t, patience, "the new certificate", func() bool { return serial() == 2 })
}
