// Package drivers is the contract between the host and a broker: what a driver must do,
// and the plain data that passes between the two. A driver lives in a package of its own
// below this one and imports its broker's client; the host imports only this package.
//
// One message's way: Receive hands out a Delivery under a lease, Renew keeps the lease
// while a handler runs, Settle says what becomes of the message. The host decides;
// a driver carries out, reports errors, and never retries a settlement by itself.
//
// Persist first, release second: whatever a settlement must leave behind (a tally, a dead
// letter) is stored before the broker is told to let the message go. A crash in between
// may repeat a message and never loses one.
package drivers

import (
	"context"
	"errors"
	"time"
)

// Sentinel errors. Everything else a driver returns is an ordinary failure, worth another try.
var (
	// ErrLeaseLost: the broker has given the message to somebody else, or will.
	ErrLeaseLost = errors.New("lease lost")
	// ErrClosed: the queue or driver was closed.
	ErrClosed = errors.New("closed")
	// ErrNotFound: no such dead letter, or no such key.
	ErrNotFound = errors.New("not found")
	// ErrExists: the key has a value already.
	ErrExists = errors.New("exists already")
	// ErrQuota: the bucket is full.
	ErrQuota = errors.New("over the quota")
	// ErrUnsupported: this broker cannot do it, and never will.
	ErrUnsupported = errors.New("not supported by this broker")
	// ErrTooLarge: the message is over the broker's own size limit.
	ErrTooLarge = errors.New("message too large for the broker")
	// ErrInvalid: the message cannot be sent as it is, a header's name or value for example.
	ErrInvalid = errors.New("invalid message")
)

// Driver is one configured broker. Its methods may be called concurrently.
type Driver interface {
	// OpenQueue prepares a queue: it connects, checks the broker's version and limits,
	// and creates what is missing when o.Create is set. What others created is never
	// altered. An error here is the operator's to mend and says how. ctx bounds the
	// opening only.
	OpenQueue(ctx context.Context, o QueueOptions) (Queue, error)
	// Ping tells whether the broker answers now.
	Ping(ctx context.Context) error
	// Close closes every queue still open and the connection. It is safe to call twice.
	Close(ctx context.Context) error
}

// Queue is one named source of messages. Its methods may be called concurrently, Receive
// by one goroutine at a time.
type Queue interface {
	// Info tells what this queue can do. It does not change while the queue is open.
	Info() Info
	// Receive waits until there is at least one message, ctx ends or an error occurs, and
	// returns at most max messages (max is at least 1). Between calls it may hold a request open at the broker
	// for as many as the last max asked for and did not get, never for more.
	// A received message is always returned: when ctx ends while the broker hands some
	// out they come with a nil error, or stay for the next call or for Close. With none to
	// return, the end of ctx is ctx's own error.
	// While the broker is away Receive waits and reconnects with backoff, and returns an
	// error only where waiting cannot help. The caller owns the deliveries and their bytes.
	Receive(ctx context.Context, max int) ([]*Delivery, error)
	// Renew asks for a new lease on each delivery, in one batch where the broker can. The
	// result has an entry for each: nil, ErrLeaseLost where the broker says so, or another
	// error where the answer is not known. Brokers without renewable leases return nil.
	Renew(ctx context.Context, ds []*Delivery) []error
	// Settle carries out settlements in one batch where the broker can, and waits for the
	// broker's confirmation. The result has an entry for each; nil means confirmed. An
	// uncertain answer is an error. A settlement that returned an error may be given
	// again: all of them are idempotent for the same delivery, also after it was handed out
	// anew. Once one is confirmed, a different one for the same delivery changes nothing. A
	// settlement of a delivery whose lease is known to be lost returns ErrLeaseLost where
	// the broker can tell. Without a verdict, or Dead without a Death, it is an error, and
	// the message stays ours.
	Settle(ctx context.Context, ss []Settlement) []error
	// Send publishes messages and returns after the broker's confirmation, an entry for
	// each; a bad message spoils no other. A second message with a Key the broker has seen in
	// its window is dropped, with a nil error. Headers that Header.Validate refuses are an
	// error. The caller keeps its messages' bytes.
	Send(ctx context.Context, ms []Message) []error
	// Counts asks the broker how many messages there are.
	Counts(ctx context.Context) (Counts, error)
	// Close gives back, uncounted and at once, what was received and not settled, with the
	// carry it came with, and ends Receive with ErrClosed. Every call after it is ErrClosed
	// (of a delivery, or ErrLeaseLost). It is safe to call twice.
	Close(ctx context.Context) error
}

// DeadLetters is implemented by queues whose dead letters can be read, also by those that
// were opened with SendOnly.
type DeadLetters interface {
	// ListDead returns at most limit dead letters, oldest first, that come after the entry
	// named, or from the first one for "". The entry named may be gone by now.
	ListDead(ctx context.Context, after string, limit int) ([]DeadLetter, error)
	// GetDead returns the dead letter of that entry, else all with that message id (a
	// message that died more than once has several), else ErrNotFound.
	GetDead(ctx context.Context, entryOrID string) ([]DeadLetter, error)
	// ReplayDead sends an entry's message again, under its own id, and then removes the
	// entry. The message gets a fresh budget: its counts move into Tally.Prior, its state
	// and errors are cleared, its age starts anew, and the header Guesthand-Replays says how
	// often that was. ErrNotFound where there is no such entry. A crash in between may repeat
	// the message.
	ReplayDead(ctx context.Context, entry string) error
	// DropDead removes an entry for good, or returns ErrNotFound.
	DropDead(ctx context.Context, entry string) error
}

// Canceller is implemented by queues that find a message by its id while it waits.
type Canceller interface {
	// DropWaiting removes the messages with this id that no worker has, ready or delayed, and
	// returns them without a lease, or ErrNotFound.
	DropWaiting(ctx context.Context, id string) ([]*Delivery, error)
}

// StartRecorder is implemented by queues whose broker dies together with the host, so that
// the broker's own delivery counts can go back in a crash. RecordStart is called on the hot
// path, just before a run starts, and must cost no system call.
type StartRecorder interface {
	RecordStart(d *Delivery)
}

// Replier is implemented by queues whose broker can answer the producer of a message.
type Replier interface {
	// Reply publishes an answer to the address that d names (Delivery.ReplyTo, not empty) and
	// returns once the broker has it, as far as the broker says so. An address that nobody
	// listens at is no error. A repeat is possible, and is the reader's to recognise by the
	// message's id.
	Reply(ctx context.Context, d *Delivery, r Reply) error
}

// Reply is the answer to one message at its final end.
type Reply struct {
	Outcome string // the outcome's word, sent as Guesthand-Outcome
	// Payload is the run's result after a success, else the error text.
	Payload []byte
}

// Inboxes is implemented by drivers at which answers can be waited for.
type Inboxes interface {
	// OpenInbox makes an address that a message can name as Guesthand-Reply-To. ctx bounds the
	// opening only.
	OpenInbox(ctx context.Context) (Inbox, error)
}

// Inbox is an address of our own. It keeps a few answers that nobody has asked for yet.
type Inbox interface {
	Address() string
	// Next waits for an answer, until ctx ends or the inbox is closed (ErrClosed).
	Next(ctx context.Context) (Answer, error)
	Close() error
}

// Answer is a Reply as it arrives.
type Answer struct {
	ID string // the message's
	Reply
}

// KeyValue is implemented by drivers whose broker keeps small values by key.
type KeyValue interface {
	// OpenBucket opens a bucket, and creates it where it is missing. A bucket of the same name
	// on the same broker is the same one, whoever opened it: that is how hosts share it. ctx
	// bounds the opening only; the bucket lives as long as the driver.
	OpenBucket(ctx context.Context, o BucketOptions) (Bucket, error)
}

// BucketOptions describes a bucket.
type BucketOptions struct {
	// Name is [a-z0-9][a-z0-9._-]*, at most 128 bytes. Names that differ are buckets that
	// share nothing.
	Name string
	// MaxKeys and MaxBytes (keys and values together) are the quota; 0: none. What another host
	// adds at the same moment may exceed it by as much as the broker cannot see.
	MaxKeys  int
	MaxBytes int64
}

// Bucket is a set of keys with values. Its methods may be called concurrently, take keys of
// any bytes, 1 to MaxKey of them (ErrInvalid otherwise), and return once the broker has
// confirmed. A value whose ttl (more than 0) is over is absent; an expired one is gone within
// a second.
type Bucket interface {
	// Get returns the value, or ErrNotFound. The caller owns the bytes.
	Get(ctx context.Context, key []byte) ([]byte, error)
	// Put stores a value, for ttl where that is more than 0. ErrQuota where the bucket is full,
	// ErrTooLarge where the broker does not take a value of this size.
	Put(ctx context.Context, key, value []byte, ttl time.Duration) error
	// Create stores a value only where there is none, decided by the broker: of all that try
	// at once, on any host, exactly one gets nil and the others ErrExists. An error without an
	// answer leaves it open.
	Create(ctx context.Context, key, value []byte, ttl time.Duration) error
	// Delete removes a key, or returns ErrNotFound.
	Delete(ctx context.Context, key []byte) error
}

// MaxKey is the most bytes of a bucket's key.
const MaxKey = 256

// QueueOptions is what a driver needs to know to open a queue. Zero values mean the default
// named at each field.
type QueueOptions struct {
	Name   string        // the queue's name in the configuration
	Lease  time.Duration // 30 s
	Create bool          // create what is missing on the broker
	// ConsumeOnly and SendOnly are hints; the zero value opens a queue for everything.
	SendOnly bool // no consumer is needed: the caller only sends, counts or reads dead letters
	// MaxOutstanding is the most messages the host will hold unsettled, slots and read-ahead.
	MaxOutstanding int
	DeadKeep       time.Duration // how long dead letters are kept; 0 for ever
	DeadMax        int           // how many at most; 0 no limit
	// Names overrides names on the broker, keys as in [queues.NAME.<driver>].
	Names map[string]string
	// Worker names this host in dead letters and logs.
	Worker string
}

// Info describes an open queue.
type Info struct {
	Caps Caps
	// Lease is how long a delivery stays ours without renewal, as the broker has it.
	Lease time.Duration
	// Retention is how long the broker keeps a message that is not finished; 0 for ever.
	Retention time.Duration
	// MaxPayload is the largest payload the broker takes, bytes; 0 unknown.
	MaxPayload int
	// DeliveryLimit is after how many deliveries of one message the broker itself drops it or
	// moves it away; 0: never. The host holds it against its policies.
	DeliveryLimit DeliveryLimit
	// Findings are what `check` and the start have to say about the broker's own limits.
	Findings []Finding
}

// DeliveryLimit is a broker's own limit on deliveries.
type DeliveryLimit struct {
	Deliveries int
	// Setting is what the broker calls it and where it stands: "delivery-limit of queue orders".
	Setting string
	// PerCopy: a retry or delay starts the broker's count anew, so that only stalls use it up.
	PerCopy bool
}

// Finding is one remark about a broker's set-up.
type Finding struct {
	Warning bool // false: just so; true: it would bend a policy
	Text    string
}

// Caps is what a kind of broker can do, as plain data. The conformance suite checks each
// field both ways.
type Caps struct {
	// MaxDelay is the longest delay the broker takes at once; longer ones hop. 0: any.
	MaxDelay time.Duration
	// Granularity is the step delays are rounded up to.
	Granularity time.Duration
	// Renewable: a lease can be extended while the handler runs.
	Renewable bool
	// Fenced: the broker refuses a settlement from a worker that has lost its lease.
	Fenced bool
	// ExactCounts: failures, delays and interruptions survive any crash; stalls too,
	// but for what a driver's package comment says.
	ExactCounts bool
	// RejectCounted: a rejected message's counts are kept.
	RejectCounted bool
	// AtomicDead: the dead letter and the removal are one transaction.
	AtomicDead bool
	// BrowseDead: dead letters can be listed without consuming them.
	BrowseDead bool
	// StableIDs: a message keeps its broker id over redeliveries and delays.
	StableIDs bool
	// Ordered: first deliveries come in the order they were sent.
	Ordered bool
	// Durable: messages survive the end of the host's process.
	Durable bool
	// Keys: Message.Key is honoured.
	Keys bool
}

// Message is what a producer sends.
type Message struct {
	// ID is empty for one that the driver makes (a UUIDv7) and does not tell: a caller that
	// wants to know sets it. Ids may repeat; only Key suppresses a message.
	ID      string
	Job     string // must not be empty
	Key     string // duplicate suppression; ErrUnsupported where Caps.Keys is false
	Headers Header // the producer's own; ours are added by the driver
	Payload []byte
	// NotBefore delays the first delivery; the zero time means now.
	NotBefore time.Time
}

// Delivery is a message handed to us under a lease.
type Delivery struct {
	ID      string
	Job     string // as the message says; may be empty or nonsense
	Headers Header // the producer's and ours, as they came
	Payload []byte // the producer's bytes, nil or empty for none
	// EnqueuedAt is when the broker took the message, or the time of its last replay.
	EnqueuedAt time.Time
	// Received is the moment the lease began, or a little before it.
	Received time.Time
	// Carry is what earlier runs left. Its stalls include those noticed with this delivery.
	Carry Carry
	// Stalled is how many of the stalls were noticed with this delivery: 0 again for the next
	// one, also where this one is only given back.
	Stalled int
	// Redelivered is true when the message was handed out before, whatever for.
	Redelivered bool
	// Held is true where the stalls may count times that the message was merely held by a
	// worker that died, and not run.
	Held bool
	// ReplyTo is the address of whoever waits for an answer, as the broker's own place or
	// Guesthand-Reply-To names it; "" for none. What it means is the driver's.
	ReplyTo string
	// Broken says why the envelope could not be decoded; Payload is then the raw bytes.
	Broken string
	// Token is the driver's own.
	Token any
}

// Carry is what a message takes from one run to the next, kept by the driver for as long as
// the message is unfinished.
type Carry struct {
	Tally
	// State is the handler's own, at most abi.MaxState bytes.
	State []byte
	// Errors are the latest failures, oldest first, at most MaxErrors.
	Errors []RunError
}

// MaxErrors is how many of its failures a message remembers, and MaxErrorText the most bytes
// of each text.
const (
	MaxErrors    = 5
	MaxErrorText = 512
)

// RunError is one failed run as dead letters show it.
type RunError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Cause   string    `json:"cause"`
	Text    string    `json:"text"`
}

// Tally is a message's durable counts.
type Tally struct {
	Failures      int `json:"failures"`
	Delays        int `json:"delays"`
	Stalls        int `json:"stalls"`
	Interruptions int `json:"interruptions"`
	// Unrouted is how often the message was put back because no handler was there.
	// It is no run and is reset by one.
	Unrouted int `json:"unrouted,omitempty"`
	// Prior is how many attempts were made before the last replay.
	Prior int `json:"prior,omitempty"`
}

// Attempt is the number of the next run: one per run, never going back.
func (t Tally) Attempt() int {
	return 1 + t.Failures + t.Delays + t.Stalls + t.Interruptions + t.Prior
}

// Replayed is the tally of a message whose dead letter is sent again: the runs that were
// made move into Prior.
func (t Tally) Replayed() Tally {
	return Tally{Prior: t.Attempt() - 1}
}

// Verdict is what is asked of the broker. The zero value is a bug.
type Verdict uint8

// The verdicts.
const (
	Ack     Verdict = iota + 1 // the message is done
	Requeue                    // deliver again after Delay, with Carry
	Dead                       // keep as a dead letter, with Carry and Death, then done
	Reject                     // the broker's own rejection
)

// String is the verdict's name in logs.
func (v Verdict) String() string {
	switch v {
	case Ack:
		return "ack"
	case Requeue:
		return "requeue"
	case Dead:
		return "dead"
	case Reject:
		return "reject"
	}
	return "no verdict"
}

// Settlement is what becomes of one delivery.
type Settlement struct {
	Delivery *Delivery
	Verdict  Verdict
	// Delay is the least time until a Requeue is delivered again. It is rounded up, never
	// shortened; zero means at once. A delay longer than the broker's own limit hops.
	Delay time.Duration
	// Carry replaces the message's own for Requeue, and is what a Dead letter or a counted
	// Reject shows. To put a message back uncounted, give it the carry it came with.
	Carry Carry
	// Death is required for Dead.
	Death *Death
	// Reason is the text for a Reject, where the broker keeps one.
	Reason string
}

// Death is why and how a message died.
type Death struct {
	Reason  string
	Outcome string // the last run's word; "" where there was no run
	Cause   string
	Time    time.Time
	Digest  string // SHA-256 of the module that ran last, hex; "" for none
	Worker  string
}

// Counts is what a queue holds now. A broker that cannot tell delayed messages from those in
// flight has both under InFlight.
type Counts struct {
	Depth    int // all that is unfinished, in flight and delayed included
	InFlight int
	Delayed  int
	Dead     int
	// Oldest is when the oldest unfinished message was enqueued; zero where there is none or the
	// broker does not tell.
	Oldest time.Time
}
