// Package rabbitdriver is the driver for RabbitMQ from 3.10 on, over AMQP 0-9-1.
//
// # Mapping
//
// A queue NAME is the durable queue guesthand.NAME, a quorum queue where the driver makes it.
// The payload is the message's own; headers are AMQP headers, several values of a name an
// array, and values that are no text are shown as text but travel as they came. The job is
// Guesthand-Job, else ce-type, else the property type, else the routing key where the message
// came through an exchange. The id is Guesthand-Id, else ce-id, else message_id; a message
// without any gets one when it is first handed out. The address for an answer is reply_to, else
// Guesthand-Reply-To. [QueueOptions.Names] has queue, type (quorum or classic), dead_queue
// and hold_prefix; queues that others made are used as they are.
//
// # Delivery
//
// One connection consumes, with a channel for each queue, and another publishes; both come
// back by themselves. Consumers are opened for as many messages as Receive asks for. A
// consumer's credit returns as its messages are settled, so that a busy host is fed without a
// request; what nobody has asked for within a tenth of a second is given back. The lease is the
// channel: it lasts as long as the channel does, and Renew proves that the broker still answers
// on it. Successes are acknowledged in runs, and proven by a request that the broker answers
// after them on the same channel.
//
// # Retry and dead letters
//
// A retry is a copy, published with a confirmation and as mandatory, and then the
// acknowledgement of the original. It goes back to the queue or, to wait, into a hold queue whose
// messages expire back into it: hold queues have fixed times, powers of two seconds, so that
// none waits behind another. A longer delay hops, some five times. The copy carries the
// tally, state and errors in the header guesthand-tally; the broker's own headers, x-death
// among them, are left out. Stalls are x-delivery-count on quorum queues, which starts anew
// with every copy. On classic queues a redelivered message is first replaced by a copy that
// counts the stall; after an end of the broker without warning that is true of every message
// there ([ClassicCaps]). A message that is given back is replaced by an uncounted copy, since
// the broker counts what is put back in any other way. A dead letter is a copy in the queue
// guesthand.dead.NAME, confirmed, then the acknowledgement. A rejection is basic.reject without
// requeue: it goes to the queue's dead-letter exchange, or is dropped where it has none.
//
// # Limits
//
// The copy and the acknowledgement are two steps: a crash in between repeats the message, and
// so does a copy whose confirmation was lost. A worker that the broker has given up can still
// publish a copy before it learns of it (Caps.Fenced is false). When a worker dies, everything
// that it held counts as stalled, started or not, and is marked Held; so does, on quorum queues
// before 4.3, a message that comes just as its consumer is cancelled. A copy goes to the end
// of the queue, so no order is kept. The broker closes a channel with a message older than its
// consumer_timeout, 30 minutes unless set otherwise: everything on it is handed out anew. A delivery
// limit below the policy's stalls makes the broker take messages away first. Counts.InFlight
// is this host's own, since AMQP shows only what waits, and Depth has no other's in it. Listing
// dead letters takes them out and puts them back: a sample of at most 10,000, which other
// readers do not see meanwhile. All headers together must fit into one frame, 128 KiB.
package rabbitdriver
