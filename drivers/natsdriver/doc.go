// Package natsdriver is the driver for NATS JetStream servers from 2.10.4 on.
//
// # Mapping
//
// A queue NAME is the stream guesthand_NAME with the subjects guesthand.NAME.JOB, read
// through the durable pull consumer guesthand. The payload is the message's own, headers
// are NATS headers. The job is Guesthand-Job, else ce-type, else what follows the queue's
// prefix in the subject (percent-encoded where a job is no subject). The id is Guesthand-Id,
// else ce-id, else stream:sequence. Header names are case-sensitive on NATS; several values
// of a name are kept. A message whose header block cannot be decoded is handed out as Broken.
// [QueueOptions.Names] overrides stream, subject, consumer and dead_stream; streams and
// consumers that others made are used as they are.
//
// # Delivery
//
// Own pull requests that expire after a second are kept open over one subscription; none is
// ever withdrawn, since the server counts what it sends to a withdrawn one as delivered. The
// lease is the consumer's AckWait and is renewed by confirmed +WPI. Successes are
// acknowledged in groups: +ACK for all, a reply asked for with the last, which proves the
// others as long as the connection did not break in between.
//
// # Retry and dead letters
//
// The server counts deliveries; what they came to is kept in the key-value bucket
// guesthand-tally_NAME under <consumer>.<sequence>.<time stored>, written with a check of
// the revision before the message is put back with NakWithDelay. The difference between the
// deliveries recorded and the server's count is what stalled. A first delivery above the
// birth mark (the stream's last sequence when the consumer was made, or when a server
// was found restarted) reads nothing. Dead letters go to the stream guesthand-dead_NAME, one
// subject each, so that a repetition is refused; then the message is acknowledged.
//
// # Values and replies
//
// A bucket is the stream KV_guesthand-kv_NAME with one message for each key and none for a
// deleted one, so that the stream's limits are the quota; NATS' own tools read it as a bucket.
// What has a time to live goes by itself on servers from 2.11 on, on older ones when it is in
// the way. A reply is a core NATS message to the subject that Guesthand-Reply-To names, unless
// that is a stream's, the server's or ours.
//
// # Limits
//
// The server does not fence: it takes an acknowledgement or a NAK from a worker that lost its
// lease, so the caller must watch its own clock (Caps.Fenced is false); a stale Requeue is
// refused where the next worker's tally is already written. Messages that a
// worker merely held when it died count as stalled and are marked Held. The dead letter and the
// acknowledgement are two steps: a crash in between repeats the second. Counts.Delayed
// looks at no more than ten thousand tallies. Headers named Nats-* are the server's and are
// refused in Send; those of foreign messages are not copied to dead letters.
package natsdriver
