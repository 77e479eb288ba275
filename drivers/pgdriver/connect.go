package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/guesthand/guesthand/drivers"
)

const dialTimeout = 5 * time.Second

// poolConfig is the URL with everything that is ours.
func (o Options) poolConfig() (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, err
	}
	o.adjust(c.ConnConfig)
	c.PingTimeout = o.AnswerTimeout / 2
	return c, nil
}

func (o Options) adjust(c *pgx.ConnConfig) {
	if o.User != "" {
		c.User = o.User
	}
	if o.Password != "" {
		c.Password = o.Password
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = o.Name
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = dialTimeout
	}
	// A link whose other end is gone without a word is noticed within half a minute, even where
	// nothing is asked.
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	c.DialFunc = dialer.DialContext
}

// where is the address without secrets.
func (o Options) where() string {
	c, err := pgconn.ParseConfig(o.URL)
	if err != nil {
		return "the given url"
	}
	return fmt.Sprintf("%s/%s", net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), c.Database)
}

// connect looks at the server and makes the pool.
func (d *Driver) connect(ctx context.Context) error {
	c, err := d.o.poolConfig()
	if err != nil {
		return err
	}
	c.ConnConfig.DialFunc = d.links.through(c.ConnConfig.DialFunc)
	if d.server, err = inspect(ctx, c.ConnConfig); err != nil {
		return err
	}
	if d.server.shared {
		// Statements prepared on one server connection are not there on the next.
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		c.AfterConnect = d.session
	}
	d.pool, err = pgxpool.NewWithConfig(ctx, c)
	return err
}

// session sets up a connection of our own. The server's timeout is a little shorter than
// ours, so that most often there is an answer. Plans must not depend on statistics: those of a
// queue's table are never those of the moment, and an index is always right here.
func (d *Driver) session(ctx context.Context, conn *pgx.Conn) error {
	limit := d.o.AnswerTimeout * 9 / 10
	_, err := conn.Exec(ctx, fmt.Sprintf(`SET statement_timeout = %d; SET idle_in_transaction_session_timeout = %d;
SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_sort = off; SET enable_mergejoin = off`,
		max(1, limit.Milliseconds()), max(1, limit.Milliseconds())), pgx.QueryExecModeSimpleProtocol)
	return err
}

// do carries out f, which talks to the server, within AnswerTimeout, and learns from the
// result how the connection is.
func (d *Driver) do(ctx context.Context, f func(ctx context.Context) error) error {
	caller, begun := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, d.o.AnswerTimeout)
	defer cancel()
	err := f(ctx)
	if caller.Err() == nil { // the caller's impatience says nothing about the connection
		d.note(ctx, begun, err)
	}
	return err
}

// each runs a statement and hands every row to f.
func (d *Driver) each(ctx context.Context, sql string, args []any, f func(rows pgx.Rows) error) error {
	return d.do(ctx, func(ctx context.Context) error {
		rows, err := d.pool.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := f(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// exec runs a statement without rows and returns how many it changed.
func (d *Driver) exec(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = d.do(ctx, func(ctx context.Context) error {
		tag, err := d.pool.Exec(ctx, sql, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// row runs a statement for one row; pgx.ErrNoRows where there is none.
func (d *Driver) row(ctx context.Context, sql string, args []any, into ...any) error {
	return d.do(ctx, func(ctx context.Context) error { return d.pool.QueryRow(ctx, sql, args...).Scan(into...) })
}

func (d *Driver) note(ctx context.Context, begun time.Time, err error) {
	if !broken(err) {
		if !temporary(err) && d.away.CompareAndSwap(true, false) {
			d.log.Info("connection to PostgreSQL is back", slog.String("server", d.o.where()))
		}
		return
	}
	if ctx.Err() != nil {
		d.links.sever(begun) // where one connection is dumb, the others are, too
		d.pool.Reset()
	}
	if d.isClosed() {
		return
	}
	if d.away.CompareAndSwap(false, true) {
		d.log.Warn("connection to PostgreSQL lost, reconnecting", slog.String("server", d.o.where()), slog.Any("error", err))
	}
}

// broken tells of an error that is no answer from a server that works.
func broken(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, errAnswer) {
		return false
	}
	code := sqlstate(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}

// uncertain tells of an error after which the statement may have been carried out.
func uncertain(err error) bool {
	var connect *pgconn.ConnectError
	return broken(err) && !pgconn.SafeToRetry(err) && !errors.As(err, &connect)
}

// temporary tells of a server's refusal that it may end by itself: the server starts, stops or
// is full, somebody held a lock, a statement took too long, a standby was reached after a
// failover.
func temporary(err error) bool {
	code := sqlstate(err)
	switch {
	case code == "":
		return broken(err)
	case code == "25006", code == "55P03": // read only, lock not available
		return true
	}
	for _, class := range []string{"08", "40", "53", "57", "58"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	// A pooler in transaction mode that the look at the start did not tell.
	return code == "26000" || code == "42P05"
}

// hopeless tells of an error that waiting cannot help.
func hopeless(err error) bool { return err != nil && !temporary(err) && !errors.Is(err, pgx.ErrNoRows) }

var errAnswer = errors.New("the server's answer makes no sense")

// wrap says what failed, and that a closed driver is the reason where it is.
func (d *Driver) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	if d.isClosed() && sqlstate(err) == "" && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = drivers.ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// backoff waits between tries: 50 ms to 4 s, with jitter so that hosts do not come in step.
func backoff(troubles int) time.Duration {
	most := min(4*time.Second, 50*time.Millisecond<<min(troubles, 8))
	return most/2 + rand.N(most/2)
}
