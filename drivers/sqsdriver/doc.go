// Package sqsdriver is the driver for Amazon SQS, standard and FIFO queues, over
// aws-sdk-go-v2. It is tested against an emulator and an in-test server that speak the real
// protocol; the real service is untested here.
//
// # Mapping
//
// A queue NAME is the SQS queue guesthand_NAME, its dead letters are in guesthand-dead_NAME;
// the names queue and dead_queue override them with another name or a queue URL. A name that
// ends in .fifo is a FIFO queue. The payload is the message body; bytes that XML cannot hold
// are base64, and the attribute Guesthand-Encoding says so ("base64"; "empty" for none, since a
// body cannot be empty). Headers are message attributes: String, or String.Array for several
// values. SQS takes ten; what has no place, no legal name or an empty value is packed, as JSON,
// in the one attribute Guesthand-Packed, where the message's counts are too. Foreign Number
// and Binary attributes keep their type over every copy and show as text and base64. The
// system attribute MessageGroupId is the header Sqs-Message-Group-Id, both ways.
//
// # Delivery
//
// Long polls in the background with a timeout of their own, one open while the queue is quiet;
// none is ever withdrawn, since what SQS hands to one is gone for a lease: Close waits for it.
// The lease is the visibility timeout, in whole seconds, renewed in batches of ten for at most
// 12 hours from the receive; a minute and a lease before that it counts as lost, so a run ends
// within 11 h 50 m at leases up to 9 minutes. Past the local lease a settlement first extends the
// visibility, which SQS refuses where the lease is lost. A message that comes again after it was
// settled here is deleted again and not handed out.
//
// # Retry and dead letters
//
// Standard queues: a message cannot be changed, so retry, delay and give-back send a copy that
// carries the counts, then delete the original. Each copy starts SQS's receive count anew, so
// ApproximateReceiveCount - 1 is what stalled. FIFO queues: a copy would lose its place, so the
// message stays, its visibility is changed, and the counts are kept in the [store] with the
// receive count they account for. Without a store they are kept by this process only, what it
// does not know counts as stalled, and a handler's delay or pause is refused with
// ErrUnsupported. A dead letter is sent to the dead queue first, then the message is deleted.
//
// # Limits
//
// Copy and delete are two calls: a crash between them, or a lost answer, makes a duplicate. A
// response lost on its way leaves its messages out for a lease and counts as stalled, though
// they were only held. A rejected message is left for its visibility to run out and the
// queue's redrive policy. Dead letters can be read only by receiving them: a list is a sample
// of at most a thousand, and for a moment nobody else sees them. SQS drops dead letters after
// 14 days at most and does not bound their number. A delay is rounded up to a whole second.
package sqsdriver
