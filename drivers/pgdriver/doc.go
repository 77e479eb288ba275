// Package pgdriver is the driver for PostgreSQL from 13 on.
//
// # Mapping
//
// All queues share the tables of one schema, which [Migrate] makes. A message is a row of
// messages: queue, job, payload (or body, as text), headers (a JSON object, name to list of
// values), id, key, run_at. Any client enqueues with an INSERT in its own transaction. The job is
// the column job, else Guesthand-Job, else ce-type; the id is the column id, else Guesthand-Id,
// else ce-id, else the row's number. Dead letters are rows of dead_letters.
//
// # Delivery
//
// A claim locks due rows with SKIP LOCKED, writes the worker's number into them and counts
// claims, in one statement. A lease is one row per worker in workers: renewing it keeps all
// that the worker holds. Who finds a worker's row expired deletes it and puts back what it
// held, a stall. Settlements go in batches and name worker and claim, so that they are refused
// to everybody else. All time is the server's. NOTIFY is a hint on a connection of its own;
// workers look every second without it.
//
// # Retry and dead letters
//
// A retry or delay is one UPDATE that stores the counts and run_at, for any time ahead. A dead
// letter is written in the statement that removes the message. What a lost answer leaves open
// is asked of the server when the settlement is repeated.
//
// # Limits
//
// Messages that a worker merely held when it died count as stalled and are marked Held. A claim
// does not wait for the disk: where the server crashes within a second of it, and the worker
// dies, too, the stall is not counted. A
// delivery that is not renewed while others of its worker are is put back by the driver
// itself. Behind a pooler in transaction mode there is no NOTIFY. An old transaction anywhere in
// the database keeps dead rows from being cleaned, and claims get slower.
package pgdriver
