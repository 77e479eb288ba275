package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// KeyPair is a certificate and key in PEM files, read again when they change: certificates
// are renewed while hosts run.
type KeyPair struct {
	cert, key string

	mu     sync.Mutex
	pair   *tls.Certificate
	stamp  [2]time.Time // the files' times when they were read
	looked time.Time
}

// lookEvery is how often the files are looked at.
const lookEvery = 10 * time.Second

// OpenKeyPair reads the files, which must fit each other.
func OpenKeyPair(cert, key string) (*KeyPair, error) {
	p := &KeyPair{cert: cert, key: key}
	if err := p.read(); err != nil {
		return nil, err
	}
	return p, nil
}

// Get is a tls.Config's GetCertificate. Where the files cannot be read, or are half replaced,
// the pair before serves on.
func (p *KeyPair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) >= lookEvery {
		p.looked = time.Now()
		if stamp, err := p.times(); err == nil && stamp != p.stamp {
			_ = p.readLocked() // what cannot be used is tried again at the next look
		}
	}
	return p.pair, nil
}

func (p *KeyPair) times() (t [2]time.Time, err error) {
	c, certErr := os.Stat(p.cert)
	k, keyErr := os.Stat(p.key)
	if err := errors.Join(certErr, keyErr); err != nil {
		return t, err
	}
	return [2]time.Time{c.ModTime(), k.ModTime()}, nil
}

func (p *KeyPair) read() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = time.Now()
	return p.readLocked()
}

func (p *KeyPair) readLocked() error {
	stamp, err := p.times()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", p.cert, p.key, err)
	}
	p.pair, p.stamp = &pair, stamp
	return nil
}
