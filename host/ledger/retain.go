package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Retention works in small steps between batches, so that no row waits long for it.
const (
	stepRows   = 2000
	stepBlocks = 64
	stepPages  = 1000
	// sizeSlack is freed beyond what is over the limit, as a part of it, so that a full
	// ledger does not delete after every batch.
	sizeSlack = 16
)

// retainer keeps a file within its age and size.
type retainer struct {
	next   time.Time // when to look at the age again
	shrink bool      // over the size, and not yet down to limit and slack
	err    error     // why the last step failed
}

// step does a little of what is to be done and tells whether there is more.
func (r *retainer) step(ctx context.Context, s *store, o Options, now time.Time) (more bool) {
	r.err = nil
	if o.Keep > 0 && !now.Before(r.next) {
		n, err := s.expire(ctx, now.Add(-o.Keep))
		if err != nil || n > 0 {
			r.err = err
			return err == nil
		}
		r.next = now.Add(retainEvery)
	}
	if o.MaxBytes <= 0 {
		return false
	}
	more, r.err = r.bound(ctx, s, o.MaxBytes)
	return more
}

func (r *retainer) bound(ctx context.Context, s *store, limit int64) (more bool, err error) {
	used, free, err := s.size(ctx)
	if err != nil {
		return false, err
	}
	if used > limit {
		r.shrink = true
	}
	if over := used - (limit - limit/sizeSlack); r.shrink && over > 0 {
		n, err := s.dropOldest(ctx, over)
		return n > 0 && err == nil, err
	}
	r.shrink = false
	if used+free <= limit {
		return false, nil
	}
	// The file itself is over: give its free pages back.
	_, err = s.write.ExecContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", stepPages))
	if err != nil {
		return false, err
	}
	_, left, err := s.size(ctx)
	return left < free, err
}

// size tells how many bytes of the database are in use and how many are free pages.
func (s *store) size(ctx context.Context) (used, free int64, err error) {
	var pages, unused, page int64
	err = s.write.QueryRowContext(ctx,
		"SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").
		Scan(&pages, &unused, &page)
	return (pages - unused) * page, unused * page, err
}

// expire deletes some of what finished before a time and tells how much that was.
func (s *store) expire(ctx context.Context, before time.Time) (n int, err error) {
	t := before.UnixNano()
	return s.drop(ctx,
		victims{"runs", "SELECT n FROM runs WHERE finished < ? ORDER BY finished LIMIT ?", []any{t, stepRows}},
		victims{"blocks", "SELECT n FROM blocks WHERE last < ? ORDER BY last LIMIT ?", []any{t, stepBlocks}})
}

// dropOldest deletes some of the oldest packed successes, or where there are none some of
// the oldest of everything else, until about that many bytes are free.
func (s *store) dropOldest(ctx context.Context, bytes int64) (n int, err error) {
	const upTo = `SELECT n FROM (SELECT n, sum(size) OVER (ORDER BY t, n) - size AS before FROM (%s)) WHERE before < ?`
	const blocks = `SELECT n, last AS t, length(ids) + length(block_rows.rows) AS size
		FROM blocks JOIN block_rows USING (n) WHERE %s ORDER BY last, n LIMIT ?`
	for _, v := range []victims{
		{"blocks", fmt.Sprintf(upTo, fmt.Sprintf(blocks, "successes = 1")), []any{stepBlocks, bytes}},
		{"blocks", fmt.Sprintf(upTo, fmt.Sprintf(blocks, "last <= (SELECT coalesce(min(finished), last) FROM runs)")), []any{stepBlocks, bytes}},
		{"runs", fmt.Sprintf(upTo, `SELECT n, finished AS t, 300 + length(error) + coalesce(length(result), 0) AS size
			FROM runs ORDER BY finished, n LIMIT ?`), []any{stepRows, bytes}},
	} {
		if n, err = s.drop(ctx, v); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// victims are rows of runs or of blocks, as a query for their n.
type victims struct {
	table, query string
	args         []any
}

func (s *store) drop(ctx context.Context, all ...victims) (n int, err error) {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	for _, v := range all {
		list, err := numbers(ctx, tx, v)
		if err != nil {
			return 0, err
		}
		tables := []string{v.table}
		if v.table == "blocks" {
			tables = append(tables, "block_rows")
		}
		for _, table := range tables {
			if err := deleteRows(ctx, tx, table, list); err != nil {
				return 0, err
			}
		}
		n += len(list)
	}
	if n == 0 {
		return 0, nil
	}
	return n, tx.Commit()
}

func numbers(ctx context.Context, tx *sql.Tx, v victims) (list []int64, err error) {
	rows, err := tx.QueryContext(ctx, v.query, v.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, rows.Err()
}

func deleteRows(ctx context.Context, tx *sql.Tx, table string, list []int64) error {
	if len(list) == 0 {
		return nil
	}
	numbers, err := json.Marshal(list)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE n IN (SELECT value FROM json_each(?))", string(numbers))
	return err
}
