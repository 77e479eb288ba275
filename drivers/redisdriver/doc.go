// Package redisdriver is the driver for Redis from 7.0 on, and servers that speak like it.
//
// # Mapping
//
// A queue NAME has its keys under guesthand:{NAME}, one hash tag ([QueueOptions.Names] "prefix"
// sets another): the list :ready and the sorted sets :delayed (by when they are due) and :lease
// (by when the lease ends) hold ids, and the hash :m:ID is a message: payload, headers (a JSON
// object, name to list of values), job, id, at (when it was taken, Unix ms), n (deliveries),
// lease (whose it is), stalls, carry (JSON) and state. Any client enqueues with HSET and RPUSH
// in one MULTI. The job is the field job, else Guesthand-Job, else ce-type; the id is the field
// id, else Guesthand-Id, else ce-id, else ID. Dead letters are the hashes :d:N, ordered by the
// sorted set :dead.
//
// # Delivery
//
// Everything is done by Lua scripts, in batches, by the server's clock. A script that hands
// out messages first puts back what is due and what has lost its worker, a stall. A request
// that got no answer is repeated under its number and gets the same messages. A lease is the
// owner of the queue's opening and that number: renewal and settlement are refused to
// everybody else. Workers that wait are woken by a published word and look every second
// without one.
//
// # Retry and dead letters
//
// Requeue stores the carry and moves the id in one script, any delay at once. A dead letter is
// the message's own hash under another name, made and removed from the queue in the same step.
// A repeated settlement whose answer was lost finds its own mark and changes nothing.
//
// # Limits
//
// What is stored is as durable as the server: without appendonly a crash loses what came after
// the last snapshot, with everysec up to a second, after a failover what was not replicated;
// finished messages can then come back. An eviction policy other than noeviction loses
// messages; those it only cuts off from their queue are found by a slow scan and put back.
// Messages that a worker merely held when it died count as stalled and are marked Held. A
// rejected message is dropped. One queue lives on one shard; a cluster is refused.
package redisdriver
