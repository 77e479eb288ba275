package engine

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
)

const (
	// recordCost is what a log record counts beside its text, so that empty lines are
	// bounded too.
	recordCost = 16
	// maxLine is the longest line of stdout or stderr that becomes one record, bytes.
	maxLine = 8 << 10
	// tailSize is how much of stderr the error text is looked for in, bytes.
	tailSize = 4 << 10
	// markSize is how far back a line that names a crash still counts, since a stack of
	// many goroutines follows it.
	markSize = 64 << 10
)

// log passes a guest's line on, within the run's budget.
func (c *Call) log(level slog.Level, text []byte, attrs ...slog.Attr) {
	c.run.logLeft -= recordCost
	if keep := max(0, c.run.logLeft); len(text) > keep {
		c.run.logDropped += len(text) - keep
		text = text[:keep]
	}
	if c.run.logLeft <= 0 {
		c.run.logLeft = 0
		return
	}
	c.run.logLeft -= len(text)
	logger := c.logger()
	if !logger.Enabled(context.Background(), level) {
		return
	}
	attrs = append(attrs, slog.String("job", c.Job), slog.String("id", c.ID), slog.Int("attempt", c.Tally.Attempt()))
	logger.LogAttrs(context.Background(), level, strings.ToValidUTF8(string(text), "\ufffd"), attrs...)
}

// slogLevel maps log_write's level, which is slog's, to one of the four.
func slogLevel(level int32) slog.Level {
	switch {
	case level < int32(slog.LevelInfo):
		return slog.LevelDebug
	case level < int32(slog.LevelWarn):
		return slog.LevelInfo
	case level < int32(slog.LevelError):
		return slog.LevelWarn
	}
	return slog.LevelError
}

// lineWriter makes log records of a stream's lines and keeps the stream's end.
type lineWriter struct {
	line []byte
	tail []byte
	mark string // the last line that names a crash
	past int    // bytes since then
}

// write takes what the guest wrote to the named stream.
func (w *lineWriter) write(c *Call, stream string, p []byte) {
	w.keep(p)
	w.past += len(p)
	for len(p) > 0 {
		if c.run.logLeft <= 0 { // looking for lines would only cost time
			c.run.logDropped += len(p)
			return
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			end = len(p)
		}
		take := min(end, maxLine-len(w.line))
		w.line = append(w.line, p[:take]...)
		p = p[take:]
		switch {
		case take == end && len(p) > 0: // p begins with the line's end
			p = p[1:]
			w.flush(c, stream)
		case len(w.line) == maxLine:
			w.flush(c, stream)
		}
	}
}

// flush logs the line begun. Empty ones are left out.
func (w *lineWriter) flush(c *Call, stream string) {
	if line := bytes.TrimRight(w.line, "\r"); len(line) > 0 {
		c.log(slog.LevelInfo, line, slog.String("stream", stream))
		switch {
		case namesCrash(string(line)):
			w.mark, w.past = string(line), 0
		case strings.HasSuffix(w.mark, ":"):
			w.mark += " " + string(line)
		}
	}
	w.line = w.line[:0]
}

// keep holds at least the last tailSize bytes.
func (w *lineWriter) keep(p []byte) {
	if len(p) >= tailSize {
		w.tail = append(w.tail[:0], p[len(p)-tailSize:]...)
		return
	}
	if len(w.tail)+len(p) > 2*tailSize {
		n := copy(w.tail, w.tail[len(w.tail)-tailSize:])
		w.tail = w.tail[:n]
	}
	w.tail = append(w.tail, p...)
}

// namesCrash tells whether a line is how a runtime begins its last words.
func namesCrash(line string) bool {
	return strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") ||
		strings.Contains(line, "panicked at")
}

// summary is the line that says what went wrong: the last one that names a crash, else the
// last that is not empty. Rust puts its message on the line after.
func (w *lineWriter) summary() string {
	tail := w.tail[max(0, len(w.tail)-tailSize):]
	last := ""
	lines := strings.Split(string(tail), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if namesCrash(line) {
			if strings.HasSuffix(line, ":") && i+1 < len(lines) {
				line += " " + strings.TrimSpace(lines[i+1])
			}
			return line
		}
		if last == "" {
			last = line
		}
	}
	if w.mark != "" && w.past <= markSize {
		return w.mark
	}
	return last
}
