package pgdriver

import "strings"

// statements are the SQL of one schema.
type statements struct {
	hasQueue, makeQueue                       string
	touch, claim, missed, next, renew         string
	ack, requeue, bury, fate                  string
	release, leave, reclaim, sweep            string
	send, counts, notify                      string
	listDead, getDead, getDeadID, replay      string
	drop, boundMax, boundKeep                 string
	reply, trimReplies                        string
	expireKeys, expireReplies, expiredBuckets string
	kvGet, kvPut, kvDelete, kvPurge           string
}

// returned are the columns of a delivery, in the order that delivery.scan reads them.
const returned = `m.entry, m.claims, CASE WHEN m.body IS NULL THEN m.payload ELSE convert_to(m.body, 'UTF8') END, m.headers::text,
m.job, m.id, m.enqueued_at, m.run_at, m.failures, m.delays, m.stalls, m.interruptions, m.unrouted, m.prior, m.stalled, m.handler_state, m.errors::text`

// letter are the columns of a dead letter, in the order that scanDead reads them.
const letter = `d.entry, d.id, d.job, d.payload, d.headers::text, d.enqueued_at, d.died_at, d.failures, d.delays, d.stalls,
d.interruptions, d.unrouted, d.prior, d.errors::text, d.reason, d.outcome, d.cause, d.digest, d.worker`

func newStatements(schema string) statements {
	s := func(sql string) string {
		sql = strings.NewReplacer("{returned}", returned, "{letter}", letter).Replace(sql)
		return inSchema(sql, schema)
	}
	return statements{
		hasQueue:  s(`SELECT EXISTS (SELECT FROM guesthand.queues WHERE queue = $1)`),
		makeQueue: s(`INSERT INTO guesthand.queues (queue) VALUES ($1) ON CONFLICT DO NOTHING`),

		// A worker's row begins or goes on: $4 is how long it is good for, $5 how long it must
		// be good for at least. Microseconds.
		touch: s(`INSERT INTO guesthand.workers AS w (worker, name, queue, expires_at)
VALUES ($1, $2, $3, now() + $4::bigint * interval '1 microsecond')
ON CONFLICT (worker) DO UPDATE SET expires_at = excluded.expires_at WHERE w.expires_at < now() + $5::bigint * interval '1 microsecond'`),
		// $3 is the lease, $4 the most messages, $5 a run_at to begin at, $6 about the most
		// bytes. A claim does not wait for the disk: what a crash of the server takes of it was
		// handed out and waits again, and the fence holds by the worker's number. MATERIALIZED keeps the planner from running the subquery again and claiming more.
		claim: s(`WITH due AS MATERIALIZED (
	SELECT m.entry, m.run_at, octet_length(m.payload) + coalesce(octet_length(m.body), 0) AS size FROM guesthand.messages m
	WHERE m.queue = $2 AND m.worker IS NULL AND m.run_at <= now() AND m.run_at >= $5
	AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
	AND EXISTS (SELECT FROM guesthand.workers w WHERE w.worker = $1 AND w.expires_at >= now() + $3::bigint * interval '1 microsecond')
	ORDER BY m.run_at, m.entry LIMIT $4 FOR UPDATE OF m SKIP LOCKED
), fit AS MATERIALIZED (
	SELECT entry FROM (SELECT entry, sum(size) OVER (ORDER BY run_at, entry) - size AS earlier FROM due) AS sized WHERE earlier < $6::bigint
)
UPDATE guesthand.messages m SET worker = $1, claims = m.claims + 1 FROM fit WHERE m.entry = fit.entry RETURNING {returned}`),
		// What is ours by a claim whose answer was lost: all but what we know of ($2).
		missed: s(`SELECT {returned} FROM guesthand.messages m WHERE m.worker = $1 AND m.entry <> ALL ($2::bigint[]) LIMIT $3`),
		// No min: with statistics from before the rows it reads all of them.
		next: s(`SELECT (SELECT ceil(extract(epoch FROM run_at - now()) * 1000)::bigint FROM guesthand.messages
WHERE queue = $1 AND worker IS NULL AND run_at > now() ORDER BY run_at LIMIT 1)`),
		renew: s(`WITH alive AS (
	UPDATE guesthand.workers SET expires_at = greatest(expires_at, now() + $2::bigint * interval '1 microsecond') WHERE worker = $1 RETURNING worker
)
SELECT m.entry FROM alive, unnest($3::bigint[], $4::integer[]) AS s(entry, claims)
JOIN guesthand.messages m ON m.entry = s.entry AND m.claims = s.claims WHERE m.worker = $1`),

		ack: s(`DELETE FROM guesthand.messages m USING unnest($2::bigint[], $3::integer[]) AS s(entry, claims)
WHERE m.entry = s.entry AND m.claims = s.claims AND m.worker = $1 RETURNING m.entry`),
		requeue: s(`UPDATE guesthand.messages m SET worker = NULL, settled = m.claims, stalled = false,
	run_at = now() + s.delay * interval '1 microsecond', failures = s.failures, delays = s.delays, stalls = s.stalls,
	interruptions = s.interruptions, unrouted = s.unrouted, prior = s.prior, handler_state = s.state, errors = s.errors::json
FROM unnest($2::bigint[], $3::integer[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[], $8::integer[], $9::integer[], $10::integer[], $11::bytea[], $12::text[])
	AS s(entry, claims, delay, failures, delays, stalls, interruptions, unrouted, prior, state, errors)
WHERE m.entry = s.entry AND m.claims = s.claims AND m.worker = $1 RETURNING m.entry`),
		bury: s(`WITH s AS MATERIALIZED (
	SELECT * FROM unnest($2::bigint[], $3::integer[], $4::text[], $5::integer[], $6::integer[], $7::integer[], $8::integer[], $9::integer[], $10::integer[],
		$11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::timestamptz[], $18::text[], $19::text[])
	AS s(entry, claims, fate, failures, delays, stalls, interruptions, unrouted, prior, errors, reason, outcome, cause, digest, worker, died_at, id, job)
), gone AS (
	DELETE FROM guesthand.messages m USING s WHERE m.entry = s.entry AND m.claims = s.claims AND m.worker = $1 RETURNING m.*
)
INSERT INTO guesthand.dead_letters (state, queue, job, payload, headers, id, message, claims, enqueued_at, died_at, failures, delays, stalls,
	interruptions, unrouted, prior, errors, reason, outcome, cause, digest, worker)
SELECT s.fate, g.queue, s.job, CASE WHEN g.body IS NULL THEN g.payload ELSE convert_to(g.body, 'UTF8') END, g.headers, s.id, g.entry, g.claims, g.enqueued_at,
	s.died_at, s.failures, s.delays, s.stalls, s.interruptions, s.unrouted, s.prior, s.errors::json, s.reason, s.outcome, s.cause, s.digest, s.worker
FROM gone g JOIN s ON s.entry = g.entry RETURNING message`),
		// What became of a claim: whether its message is there, whether that claim was put back
		// by a settlement, and as what it was buried.
		fate: s(`SELECT EXISTS (SELECT FROM guesthand.messages m WHERE m.entry = $1),
	EXISTS (SELECT FROM guesthand.messages m WHERE m.entry = $1 AND m.settled = $2),
	coalesce((SELECT d.state FROM guesthand.dead_letters d WHERE d.message = $1 AND d.claims = $2), '')`),

		release: s(`UPDATE guesthand.messages m SET worker = NULL, stalls = m.stalls + 1, stalled = true FROM unnest($2::bigint[], $3::integer[]) AS s(entry, claims)
WHERE m.entry = s.entry AND m.claims = s.claims AND m.worker = $1`),
		leave: s(`WITH gone AS (DELETE FROM guesthand.workers WHERE worker = $1)
UPDATE guesthand.messages SET worker = NULL, stalled = false WHERE worker = $1`),
		reclaim: s(`WITH gone AS (
	DELETE FROM guesthand.workers WHERE expires_at < now() RETURNING worker
), back AS (
	UPDATE guesthand.messages m SET worker = NULL, stalls = m.stalls + 1, stalled = true FROM gone WHERE m.worker = gone.worker RETURNING m.queue
)
SELECT queue, count(*) FROM back GROUP BY queue`),
		sweep: s(`WITH back AS (
	UPDATE guesthand.messages m SET worker = NULL, stalls = m.stalls + 1, stalled = true
	WHERE m.worker IS NOT NULL AND NOT EXISTS (SELECT FROM guesthand.workers w WHERE w.worker = m.worker) RETURNING m.queue
)
SELECT queue, count(*) FROM back GROUP BY queue`),

		send: s(`INSERT INTO guesthand.messages (queue, job, payload, headers, id, key, run_at)
SELECT $1, s.job, s.payload, s.headers::jsonb, s.id, s.key, coalesce(s.run_at, now())
FROM unnest($2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::timestamptz[]) WITH ORDINALITY AS s(job, payload, headers, id, key, run_at, place)
ORDER BY s.place`),
		counts: s(`SELECT (SELECT count(*) FROM guesthand.messages WHERE queue = $1 AND worker IS NULL),
	(SELECT count(*) FROM guesthand.messages m JOIN guesthand.workers w ON w.worker = m.worker WHERE w.queue = $1),
	(SELECT count(*) FROM guesthand.messages WHERE queue = $1 AND worker IS NULL AND run_at > now()),
	(SELECT count(*) FROM guesthand.dead_letters WHERE queue = $1 AND state = 'dead'),
	least((SELECT min(enqueued_at) FROM (SELECT enqueued_at FROM guesthand.messages WHERE queue = $1 AND worker IS NULL ORDER BY run_at, entry LIMIT 100) AS waiting),
		(SELECT min(m.enqueued_at) FROM guesthand.messages m JOIN guesthand.workers w ON w.worker = m.worker WHERE w.queue = $1))`),
		notify: `SELECT pg_notify($1, q) FROM unnest($2::text[]) AS q`,

		listDead:  s(`SELECT {letter} FROM guesthand.dead_letters d WHERE d.queue = $1 AND d.state = 'dead' AND d.entry > $2 ORDER BY d.entry LIMIT $3`),
		getDead:   s(`SELECT {letter} FROM guesthand.dead_letters d WHERE d.queue = $1 AND d.state = 'dead' AND d.entry = $2`),
		getDeadID: s(`SELECT {letter} FROM guesthand.dead_letters d WHERE d.queue = $1 AND d.state = 'dead' AND d.id = $2 ORDER BY d.entry LIMIT $3`),
		replay: s(`WITH gone AS (
	DELETE FROM guesthand.dead_letters WHERE queue = $1 AND entry = $2 AND state = 'dead' RETURNING *
)
INSERT INTO guesthand.messages (queue, job, payload, headers, id, claims, settled, prior)
SELECT g.queue, g.job, g.payload, $3::jsonb, g.id, 1, 1, $4 FROM gone g`),
		drop: s(`DELETE FROM guesthand.dead_letters WHERE queue = $1 AND entry = $2 AND state = 'dead'`),
		boundMax: s(`DELETE FROM guesthand.dead_letters WHERE queue = $1 AND state = $2 AND entry <= (
	SELECT entry FROM guesthand.dead_letters WHERE queue = $1 AND state = $2 ORDER BY entry DESC OFFSET $3 LIMIT 1)`),
		boundKeep: s(`DELETE FROM guesthand.dead_letters WHERE entry IN (
	SELECT entry FROM guesthand.dead_letters WHERE queue = $1 AND state = $2 AND buried_at < now() - $3::bigint * interval '1 microsecond' ORDER BY entry LIMIT $4)`),

		reply: s(`WITH kept AS (
	INSERT INTO guesthand.replies (address, id, outcome, payload, expires_at) VALUES ($1, $2, $3, $4, now() + $5::bigint * interval '1 microsecond')
)
SELECT pg_notify($6, $1)`),
		trimReplies: s(`DELETE FROM guesthand.replies WHERE address = $1 AND entry <= (
	SELECT entry FROM guesthand.replies WHERE address = $1 ORDER BY entry DESC OFFSET $2 LIMIT 1)`),

		expireKeys:     s(`DELETE FROM guesthand.keys WHERE (queue, key) IN (SELECT queue, key FROM guesthand.keys WHERE expires_at < now() ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`),
		expireReplies:  s(`DELETE FROM guesthand.replies WHERE entry IN (SELECT entry FROM guesthand.replies WHERE expires_at < now() ORDER BY expires_at LIMIT $1)`),
		expiredBuckets: s(`SELECT DISTINCT bucket FROM (SELECT bucket FROM guesthand.bucket_values WHERE expires_at < now() ORDER BY expires_at LIMIT $1) AS expired`),

		kvGet:    s(`SELECT value FROM guesthand.bucket_values WHERE bucket = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > now())`),
		kvPut:    s(`SELECT guesthand.bucket_put($1, $2, $3, $4, $5, $6, $7)`),
		kvDelete: s(`SELECT guesthand.bucket_delete($1, $2)`),
		kvPurge:  s(`SELECT guesthand.bucket_purge($1)`),
	}
}
