package ledger

import (
	"context"
	"database/sql"
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
	if r.shrink && used > limit-limit/sizeSlack {
		n, err := s.dropOldest(ctx)
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
func (s *store) expire(ctx context.Context, before time.Time) (n int64, err error) {
	t := before.UnixNano()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		rows, err := affected(tx.ExecContext(ctx,
			"DELETE FROM runs WHERE n IN (SELECT n FROM runs WHERE finished < ? ORDER BY finished LIMIT ?)", t, stepRows))
		if err != nil {
			return err
		}
		blocks, err := dropBlocks(ctx, tx, "SELECT n FROM blocks WHERE last < ? ORDER BY last LIMIT ?", t, stepBlocks)
		n = rows + blocks
		return err
	})
	return n, err
}

// dropOldest deletes some of the oldest packed successes, or where there are none some of
// the oldest of everything else.
func (s *store) dropOldest(ctx context.Context) (n int64, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		n, err = dropBlocks(ctx, tx, "SELECT n FROM blocks WHERE successes = 1 ORDER BY last LIMIT ?", stepBlocks)
		if err != nil || n > 0 {
			return err
		}
		n, err = dropBlocks(ctx, tx, `SELECT n FROM blocks WHERE last <= (SELECT coalesce(min(finished), last) FROM runs)
			ORDER BY last LIMIT ?`, 1)
		if err != nil || n > 0 {
			return err
		}
		n, err = affected(tx.ExecContext(ctx,
			"DELETE FROM runs WHERE n IN (SELECT n FROM runs ORDER BY finished LIMIT ?)", stepRows))
		return err
	})
	return n, err
}

func dropBlocks(ctx context.Context, tx *sql.Tx, which string, args ...any) (int64, error) {
	if _, err := tx.ExecContext(ctx, "DELETE FROM block_rows WHERE n IN ("+which+")", args...); err != nil {
		return 0, err
	}
	return affected(tx.ExecContext(ctx, "DELETE FROM blocks WHERE n IN ("+which+")", args...))
}

func affected(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (s *store) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
