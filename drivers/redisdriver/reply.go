package redisdriver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// replyKeep is how long an answer waits for its reader, and replyMost how many may wait
	// under one key.
	replyKeep = 10 * time.Minute
	replyMost = 100
)

// replyJSON is an answer as its reader finds it.
type replyJSON struct {
	ID            string  `json:"id"`
	Outcome       string  `json:"outcome"`
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 *string `json:"payload_base64,omitempty"`
}

// Reply implements drivers.Replier: the answer is pushed to the list that the message names,
// for BRPOP. Only keys under ReplyPrefix are written, whatever a producer names.
func (q *queue) Reply(ctx context.Context, d *drivers.Delivery, r drivers.Reply) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	key := d.ReplyTo
	if len(key) <= len(ReplyPrefix) || !strings.HasPrefix(key, ReplyPrefix) {
		return fmt.Errorf("reply to %q: only keys that begin with %s are written: %w", key, ReplyPrefix, drivers.ErrInvalid)
	}
	answer := replyJSON{ID: d.ID, Outcome: r.Outcome}
	if s := string(r.Payload); utf8.ValidString(s) {
		answer.Payload = &s
	} else {
		s = base64.StdEncoding.EncodeToString(r.Payload)
		answer.PayloadBase64 = &s
	}
	b, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("reply to %q: %w", key, err)
	}
	if len(b) > q.info.MaxPayload {
		return fmt.Errorf("reply to %q of %d bytes, the server takes %d: %w", key, len(b), q.info.MaxPayload, drivers.ErrTooLarge)
	}
	push := redis.NewIntCmd(ctx, "lpush", key, b)
	trim := redis.NewStatusCmd(ctx, "ltrim", key, 0, replyMost-1)
	expire := redis.NewBoolCmd(ctx, "pexpire", key, replyKeep.Milliseconds())
	q.d.do(ctx, push, trim, expire)
	for _, c := range []redis.Cmder{push, trim, expire} {
		if err := c.Err(); redis.HasErrorPrefix(err, "WRONGTYPE") {
			return fmt.Errorf("reply to %q: %w: %w", key, err, drivers.ErrInvalid)
		} else if err != nil {
			return q.d.wrap(fmt.Sprintf("reply to %q", key), err)
		}
	}
	return nil
}
