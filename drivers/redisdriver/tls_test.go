package redisdriver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

// TestTLS runs a queue over rediss, with a certificate that the system trusts, and is refused
// under a name that is not the certificate's.
func TestTLS(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only there a variable adds to the certificates that are trusted")
	}
	cert, key := certificate(t)
	t.Setenv("SSL_CERT_FILE", cert)
	port := redistest.FreePort(t)
	s := redistest.Start(t, fmt.Sprintf("tls-port %d", port), "tls-cert-file "+cert, "tls-key-file "+key, "tls-auth-clients no")
	q := worker(t, s, redisdriver.Options{URL: fmt.Sprintf("rediss://127.0.0.1:%d/3", port)}, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m"})
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
	_, err := redisdriver.Open(t.Context(), redisdriver.Options{URL: fmt.Sprintf("rediss://localhost:%d", port)})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("connected under another name: %v", err)
	}
}

// certificate writes one for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret)
}
