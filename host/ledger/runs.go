package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Runs returns the rows a filter selects, the latest finished first. It sees everything
// recorded before the call, unless the file cannot be written at the moment.
func (l *Ledger) Runs(ctx context.Context, f Filter) ([]Row, error) {
	if l == nil {
		return nil, nil
	}
	if err := l.Flush(ctx); err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	} // any other error is the writer's, and logged: what is in the file can be read
	rows, err := l.runs(ctx, f)
	if err != nil {
		l.damaged(err)
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return rows, nil
}

func (l *Ledger) runs(ctx context.Context, f Filter) ([]Row, error) {
	// One transaction: it sees one state of the file, and it takes one connection, so that
	// readers cannot wait for each other's.
	tx, err := l.store.Load().read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // it only read
	r := reader{tx: tx, f: f, log: l.log}
	rows, err := r.plain(ctx)
	if err != nil {
		return nil, err
	}
	if rows, err = r.packed(ctx, rows); err != nil {
		return nil, err
	}
	return latest(rows, f.limit()), nil
}

// damaged tells the writer of an error that only a new file mends.
func (l *Ledger) damaged(err error) {
	if !corrupt(err) || l.o.ReadOnly {
		return
	}
	select {
	case l.damage <- err:
	default: // it knows
	}
}

// reader is one call of Runs.
type reader struct {
	tx  *sql.Tx
	f   Filter
	log *slog.Logger
}

// latest sorts rows and keeps the first of them.
func latest(rows []Row, limit int) []Row {
	slices.SortStableFunc(rows, func(a, b Row) int { return b.Finished.Compare(a.Finished) })
	return rows[:min(limit, len(rows))]
}

// plain reads the table runs.
func (r *reader) plain(ctx context.Context) ([]Row, error) {
	where, args := conditions(r.f)
	args = append(args, r.f.limit())
	rows, err := r.tx.QueryContext(ctx,
		"SELECT "+columns+" FROM runs"+where+" ORDER BY finished DESC, n DESC LIMIT ?", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Row
	for rows.Next() {
		var row Row
		var started sql.NullInt64
		var finished int64
		if err := rows.Scan(&row.ID, &row.Queue, &row.Job, &row.Attempt, &row.Outcome, &row.Cause, &row.Code, &row.Delay,
			&row.Error, &row.Result, &started, &finished, &row.Settlement, &row.Digest, &row.Worker); err != nil {
			return nil, err
		}
		if started.Valid {
			row.Started = time.Unix(0, started.Int64).UTC()
		}
		row.Finished = fromUnixNano(finished)
		list = append(list, row)
	}
	return list, rows.Err()
}

func conditions(f Filter) (where string, args []any) {
	var parts []string
	for _, c := range []struct{ column, value string }{
		{"queue", f.Queue}, {"job", f.Job}, {"outcome", f.Outcome}, {"id", f.ID},
	} {
		if c.value != "" {
			parts = append(parts, c.column+" = ?")
			args = append(args, c.value)
		}
	}
	if !f.Since.IsZero() {
		parts = append(parts, "finished >= ?")
		args = append(args, f.Since.UnixNano())
	}
	if !f.Before.IsZero() {
		parts = append(parts, "finished < ?")
		args = append(args, f.Before.UnixNano())
	}
	if len(parts) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(parts, " AND "), args
}

// packed adds rows from blocks, the latest blocks first, until no earlier block can hold a
// row that would be among the latest.
func (r *reader) packed(ctx context.Context, rows []Row) ([]Row, error) {
	query, args := "SELECT n, last, names, NULL FROM blocks", []any{}
	if r.f.ID != "" {
		query = "SELECT n, last, names, ids FROM blocks JOIN block_rows USING (n)"
	}
	if !r.f.Since.IsZero() {
		query, args = query+" WHERE last >= ?", append(args, r.f.Since.UnixNano())
	}
	if !r.f.Before.IsZero() {
		word := " WHERE"
		if len(args) > 0 {
			word = " AND"
		}
		query, args = query+word+" first < ?", append(args, r.f.Before.UnixNano())
	}
	blocks, err := r.tx.QueryContext(ctx, query+" ORDER BY last DESC, n DESC", args...)
	if err != nil {
		return nil, err
	}
	defer blocks.Close()
	for blocks.Next() {
		var n, last int64
		var names string
		var ids []byte
		if err := blocks.Scan(&n, &last, &names, &ids); err != nil {
			return nil, err
		}
		if len(rows) >= r.f.limit() {
			rows = latest(rows, r.f.limit())
			if unixNano(rows[len(rows)-1].Finished) > last {
				break
			}
		}
		if r.f.ID != "" && !mayHaveID(ids, r.f.ID) {
			continue
		}
		found, err := r.block(ctx, n, names)
		if err != nil {
			return nil, err
		}
		rows = append(rows, found...)
	}
	return rows, blocks.Err()
}

// block returns a block's rows that match, the last written first.
func (r *reader) block(ctx context.Context, n int64, names string) ([]Row, error) {
	if ok, err := named(r.f, names); err != nil || !ok {
		return nil, err
	}
	var data []byte
	if err := r.tx.QueryRowContext(ctx, "SELECT rows FROM block_rows WHERE n = ?", n).Scan(&data); err != nil {
		return nil, err
	}
	rows, err := unpack(data)
	if err != nil {
		// The other blocks can be read all the same.
		r.log.Warn("a block of the ledger cannot be read", "block", n, "error", err)
		return nil, nil
	}
	rows = slices.DeleteFunc(rows, func(row Row) bool { return !r.f.matches(&row) })
	slices.Reverse(rows)
	return rows, nil
}

// named tells whether a block has rows of the filter's queue, job and outcome.
func named(f Filter, names string) (bool, error) {
	if f.Queue == "" && f.Job == "" && f.Outcome == "" {
		return true, nil
	}
	var list []name
	if err := json.Unmarshal([]byte(names), &list); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list, func(n name) bool {
		return (f.Queue == "" || f.Queue == n.Queue) && (f.Job == "" || f.Job == n.Job) &&
			(f.Outcome == "" || f.Outcome == n.Outcome)
	}), nil
}
