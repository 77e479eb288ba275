package cfdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// placed is what is kept of a message that stays where it is: what a copy would carry, and how
// many of Cloudflare's attempts it accounts for.
type placed struct {
	packed
	V int `json:"v"`
	N int `json:"n"`
}

// place keeps records by message id.
type place interface {
	// get returns the record, and whether there is one.
	get(ctx context.Context, id string) (placed, bool, error)
	put(ctx context.Context, id string, r placed) error
	drop(ctx context.Context, id string) error
}

// storedPlace keeps them in a bucket of the [store], which all hosts share.
type storedPlace struct {
	store drivers.KeyValue
	name  string
	log   *slog.Logger

	mu     sync.Mutex
	bucket drivers.Bucket
}

// storedKeep is longer than Cloudflare keeps any message.
const storedKeep = longestRetention + 24*time.Hour

func (s *storedPlace) open(ctx context.Context) (drivers.Bucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bucket != nil {
		return s.bucket, nil
	}
	b, err := s.store.OpenBucket(ctx, drivers.BucketOptions{Name: s.name})
	if err != nil {
		return nil, fmt.Errorf("[store]: %w", err)
	}
	s.bucket = b
	return b, nil
}

func (s *storedPlace) get(ctx context.Context, id string) (placed, bool, error) {
	b, err := s.open(ctx)
	if err != nil {
		return placed{}, false, err
	}
	v, err := b.Get(ctx, []byte(id))
	if errors.Is(err, drivers.ErrNotFound) {
		return placed{}, false, nil
	}
	if err != nil {
		return placed{}, false, fmt.Errorf("[store]: %w", err)
	}
	var r placed
	err = json.Unmarshal(v, &r)
	if r.V > envelopeVersion {
		return placed{}, false, errNewer
	}
	if err != nil { // it would come back for ever
		s.log.Error("a message's counts in the [store] cannot be read and are taken for none", slog.String("message", id), slog.Any("error", err))
		return placed{}, false, nil
	}
	return r, true, nil
}

func (s *storedPlace) put(ctx context.Context, id string, r placed) error {
	b, err := s.open(ctx)
	if err != nil {
		return err
	}
	r.V = envelopeVersion
	v, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return wrap(b.Put(ctx, []byte(id), v, storedKeep), "[store]")
}

func (s *storedPlace) drop(ctx context.Context, id string) error {
	b, err := s.open(ctx)
	if err != nil {
		return err
	}
	if err := b.Delete(ctx, []byte(id)); err != nil && !errors.Is(err, drivers.ErrNotFound) {
		return fmt.Errorf("[store]: %w", err)
	}
	return nil
}

// localPlace keeps them in this process, bounded: what it forgets counts as stalled.
type localPlace struct{ records *recent[placed] }

func (l *localPlace) get(_ context.Context, id string) (placed, bool, error) {
	r, ok := l.records.get(id)
	return r, ok, nil
}

func (l *localPlace) put(_ context.Context, id string, r placed) error {
	l.records.put(id, r)
	return nil
}

func (l *localPlace) drop(_ context.Context, id string) error {
	l.records.drop(id)
	return nil
}
