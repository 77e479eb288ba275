// Package cfdriver is the driver for Cloudflare Queues, pulled over HTTP, on cloudflare-go. It
// is tested against an in-test server written from Cloudflare's API reference; the real service
// is untested here.
//
// # Mapping
//
// A queue NAME is the Cloudflare queue guesthand-NAME with an HTTP pull consumer, its dead
// letters are in dead-guesthand-NAME; the names queue and dead_queue override them with another
// name or an id. A message has a body and nothing else, so what Send publishes is an envelope: a
// JSON object with the member "guesthand", the version, beside id, job, headers and one of text,
// base64 and json, the payload. Any producer may write one. A body that is none is the payload
// as it is, without headers.
//
// A queue whose name at Cloudflare begins with guesthand- is ours: every message in it may be
// rewritten. All others are not, created here or not.
//
// # Delivery
//
// Short polls, from 250 ms to 10 s apart while the queue is quiet. The lease is
// visibility_timeout_ms and cannot be renewed, so it must cover the longest run. A lease id is
// no fence: Cloudflare takes an acknowledgement after the lease is over. Past the lease by our
// own clock only a success is sent. A message that comes again after its settlement here is
// acknowledged again and not handed out.
//
// # Retry and dead letters
//
// Queues of ours: retry, delay and give-back push a copy whose envelope carries the counts, then
// acknowledge the original. Each copy starts Cloudflare's attempts anew, so attempts - 1 is what
// stalled. Other queues: the message stays and is retried natively with a delay, which spends an
// attempt of the consumer's max_retries whatever it was for. Its counts are in the [store], with
// the attempt they account for; without a store in this process only, and what it does not know
// counts as stalled. A dead letter is pushed to the dead queue first, then the message is
// acknowledged. A rejected message is left to its visibility timeout and the consumer's
// max_retries and dead_letter_queue.
//
// # Limits
//
// Push and acknowledgement are two calls: a crash between them, or a lost answer, makes a
// duplicate. A pull whose answer is lost leaves its messages out for a lease and counts as
// stalled, though they were only held. Dead letters can be read only by pulling them: a list is
// a sample of at most a thousand, and for a moment nobody else sees them. 128 KB for a message,
// 12 h for a delay and a lease, 14 days at most for everything. Of its messages Cloudflare tells
// how many are not acknowledged, and not how many of these are delayed or in flight.
package cfdriver
