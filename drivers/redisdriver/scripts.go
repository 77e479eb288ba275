package redisdriver

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"

	"github.com/redis/go-redis/v9"
)

//go:embed lua
var sources embed.FS

// script is Lua that the server keeps under its digest.
type script struct{ text, hash string }

// drains marks scripts that run also when the server's memory is full: they free some, or
// must not fail half-way through a message's life.
const drains = "#!lua flags=allow-oom\n"

var (
	reserveScript  = load(drains, "common", "reserve")
	renewScript    = load(drains, "common", "renew")
	finishScript   = load(drains, "common", "finish")
	requeueScript  = load(drains, "common", "requeue")
	giveBackScript = load(drains, "common", "giveback")
	buryScript     = load(drains, "common", "bury")
	boundScript    = load(drains, "common", "bound")
	reapScript     = load(drains, "common", "reap")
	replayScript   = load(drains, "common", "replay")
	dropScript     = load(drains, "common", "drop")
	countsScript   = load(drains, "common", "counts")
	sendScript     = load("#!lua\n", "common", "send")
	kvGetScript    = load(drains, "kv_common", "kv_get")
	kvPutScript    = load("#!lua\n", "kv_common", "kv_put")
	kvDeleteScript = load(drains, "kv_common", "kv_delete")
)

var scripts = []script{reserveScript, renewScript, finishScript, requeueScript, giveBackScript, buryScript, boundScript, reapScript,
	replayScript, dropScript, countsScript, sendScript, kvGetScript, kvPutScript, kvDeleteScript}

// loadScripts tells the server all scripts. Where it may not be told so they are sent in full
// with their first use.
func (d *Driver) loadScripts(ctx context.Context) {
	cmds := make([]redis.Cmder, len(scripts))
	for i, s := range scripts {
		cmds[i] = redis.NewStringCmd(ctx, "script", "load", s.text)
	}
	d.do(ctx, cmds...)
}

func load(head string, names ...string) script {
	text := head
	for _, name := range names {
		b, err := sources.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // embedded
		}
		text += string(b)
	}
	sum := sha1.Sum([]byte(text))
	return script{text: text, hash: hex.EncodeToString(sum[:])}
}

// call is one script with its arguments, and the answer.
type call struct {
	script script
	keys   []string
	args   []any
	cmd    *redis.Cmd
}

func (c *call) command(ctx context.Context, by string) *redis.Cmd {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	name, text := "evalsha", c.script.hash
	if by == "text" {
		name, text = "eval", c.script.text
	}
	args = append(args, name, text, len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	return redis.NewCmd(ctx, append(args, c.args...)...)
}

// run runs scripts in one round trip. A script that the server does not know, as after a
// restart, has done nothing and is sent in full.
func (d *Driver) run(ctx context.Context, calls ...*call) {
	d.process(ctx, calls, "hash")
	var unknown []*call
	for _, c := range calls {
		if c.cmd.Err() != nil && redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 {
		d.process(ctx, unknown, "text")
	}
}

func (d *Driver) process(ctx context.Context, calls []*call, by string) {
	cmds := make([]redis.Cmder, len(calls))
	for i, c := range calls {
		c.cmd = c.command(ctx, by)
		cmds[i] = c.cmd
	}
	d.do(ctx, cmds...)
}

// integers reads an answer of numbers.
func integers(v any) ([]int64, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errAnswer
	}
	out := make([]int64, len(list))
	for i, e := range list {
		if out[i], ok = e.(int64); !ok {
			return nil, errAnswer
		}
	}
	return out, nil
}

var errAnswer = errors.New("the server's answer is not what the script returns")
