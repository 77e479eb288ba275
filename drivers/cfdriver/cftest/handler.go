package cftest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// refusal is an answer that says no.
type refusal struct {
	status, code int
	text         string
}

func refuse(status, code int, format string, a ...any) *refusal {
	return &refusal{status, code, fmt.Sprintf(format, a...)}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return // the client has left
	}
	action, id := route(r)
	f := s.next(action)
	if f == nil {
		f = &Fault{}
	}
	switch {
	case f.Hang:
		hang(r.Context())
		return
	case f.Status != 0:
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
		}
		write(w, nil, refuse(f.Status, 10000+f.Status, "as the test asked"))
		return
	case f.Unsuccessful:
		send(w, http.StatusOK, map[string]any{"success": false, "errors": []any{}, "messages": []any{}, "result": nil})
		return
	}
	var result any
	no := authorize(r)
	if no == nil {
		s.state.mu.Lock()
		result, no = s.do(action, id, body, f)
		s.state.mu.Unlock()
	}
	if f.Lose {
		panic(http.ErrAbortHandler) // breaks the connection
	}
	write(w, result, no)
}

func authorize(r *http.Request) *refusal {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		return refuse(http.StatusForbidden, 10000, "Authentication error")
	}
	if !strings.HasPrefix(r.URL.Path, "/client/v4/accounts/"+Account+"/") {
		return refuse(http.StatusNotFound, 7003, "could not route to %s, perhaps your object identifier is invalid?", r.URL.Path)
	}
	return nil
}

// route names the action and the queue's id.
func route(r *http.Request) (action, id string) {
	_, path, _ := strings.Cut(r.URL.Path, "/queues")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	id = parts[0]
	what := r.Method + " " + strings.Join(parts[1:], "/")
	switch {
	case id == "" && r.Method == http.MethodPost:
		return ActionCreate, id
	case id == "":
		return ActionList, id
	}
	return map[string]string{
		"POST messages/pull": ActionPull, "POST messages/ack": ActionAck, "POST messages": ActionPush,
		"POST messages/batch": ActionBatch, "GET metrics": ActionMetrics, "GET ": ActionGet, "PATCH ": ActionEdit,
		"GET consumers": ActionConsumers, "POST consumers": ActionNewConsumer,
	}[what], id
}

// write answers in Cloudflare's form.
func write(w http.ResponseWriter, result any, no *refusal) {
	a := map[string]any{"success": no == nil, "errors": []any{}, "messages": []any{}, "result": result}
	status := http.StatusOK
	if no != nil {
		status = no.status
		a["errors"] = []any{map[string]any{"code": no.code, "message": no.text}}
	}
	send(w, status, a)
}

func send(w http.ResponseWriter, status int, a map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client may have left
}

// strict decodes what a client sends, and refuses members that the API does not have.
func strict(body []byte, v any) *refusal {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return refuse(http.StatusBadRequest, 10026, "invalid body: %s", err)
	}
	return nil
}

// do carries out one request. The state is locked.
func (s *Server) do(action, id string, body []byte, f *Fault) (any, *refusal) {
	switch action {
	case ActionList:
		list := []any{}
		for _, q := range s.state.queues {
			list = append(list, q.describe())
		}
		return list, nil
	case ActionCreate:
		return s.create(body)
	case "":
		return nil, refuse(http.StatusMethodNotAllowed, 10405, "no such route")
	}
	q := s.state.find(id)
	if q == nil || q.id != id {
		return nil, refuse(http.StatusNotFound, 11000, "queue %s does not exist", id)
	}
	switch action {
	case ActionGet:
		return q.describe(), nil
	case ActionConsumers:
		return q.consumers(), nil
	case ActionNewConsumer:
		return s.addConsumer(q, body)
	case ActionEdit:
		return q.edit(body)
	case ActionMetrics:
		return s.metrics(q), nil
	case ActionPull:
		return s.pull(q, body)
	case ActionAck:
		return s.ack(q, body, f)
	case ActionPush:
		var m pushed
		if no := strict(body, &m); no != nil {
			return nil, no
		}
		return s.push(q, []pushed{m})
	}
	var b struct {
		Messages []pushed `json:"messages"`
		Delay    float64  `json:"delay_seconds"`
	}
	if no := strict(body, &b); no != nil {
		return nil, no
	}
	return s.push(q, b.Messages)
}

func (s *Server) pull(q *queue, body []byte) (any, *refusal) {
	in := struct {
		Batch      int `json:"batch_size"`
		Visibility int `json:"visibility_timeout_ms"`
	}{Batch: 5, Visibility: 30_000}
	if no := strict(body, &in); no != nil {
		return nil, no
	}
	visibility := time.Duration(in.Visibility) * time.Millisecond
	switch {
	case q.consumer == nil || q.consumer.kind != "http_pull":
		return nil, refuse(http.StatusBadRequest, 11010, "queue %s has no HTTP pull consumer", q.name)
	case in.Batch < 1 || in.Batch > maxBatch:
		return nil, refuse(http.StatusBadRequest, 11011, "batch_size %d", in.Batch)
	case visibility <= 0 || visibility > maxVisibility:
		return nil, refuse(http.StatusBadRequest, 11012, "visibility_timeout_ms %d", in.Visibility)
	}
	ms, leases := s.state.pull(q, in.Batch, visibility)
	list := []any{}
	for i, m := range ms {
		text := string(m.body)
		if m.kind != "text" {
			text = base64.StdEncoding.EncodeToString(m.body)
		}
		list = append(list, map[string]any{
			"id": m.id, "body": text, "attempts": m.attempts, "lease_id": leases[i], "timestamp_ms": m.sent.UnixMilli(),
			"metadata": map[string]any{"CF-Content-Type": m.kind, "CF-sourceMessageSource": "http"},
		})
	}
	return map[string]any{"message_backlog_count": q.messages.Len(), "messages": list}, nil
}

func (s *Server) ack(q *queue, body []byte, f *Fault) (any, *refusal) {
	var in struct {
		Acks []struct {
			Lease string `json:"lease_id"`
		} `json:"acks"`
		Retries []struct {
			Lease string `json:"lease_id"`
			Delay *int   `json:"delay_seconds"`
		} `json:"retries"`
	}
	if no := strict(body, &in); no != nil {
		return nil, no
	}
	if q.consumer == nil {
		return nil, refuse(http.StatusBadRequest, 11010, "queue %s has no HTTP pull consumer", q.name)
	}
	if len(in.Acks)+len(in.Retries) > maxBatch {
		return nil, refuse(http.StatusBadRequest, 11013, "%d entries", len(in.Acks)+len(in.Retries))
	}
	for _, r := range in.Retries {
		if r.Delay != nil && (*r.Delay < 0 || time.Duration(*r.Delay)*time.Second > s.state.maxDelay) {
			return nil, refuse(http.StatusBadRequest, 11014, "delay_seconds %d", *r.Delay)
		}
	}
	if f.Forget {
		return map[string]any{"ackCount": len(in.Acks), "retryCount": len(in.Retries), "warnings": map[string]string{}}, nil
	}
	warned := map[int]bool{}
	for _, i := range f.Warn {
		warned[i] = true
	}
	warnings := map[string]string{}
	acked, retried := 0, 0
	for i, a := range in.Acks {
		switch {
		case warned[i]:
			warnings[a.Lease] = "could not be acknowledged"
		case q.ack(a.Lease):
			acked++
		default:
			warnings[a.Lease] = "lease not found"
		}
	}
	for i, r := range in.Retries {
		delay := q.consumer.retryDelay
		if r.Delay != nil {
			delay = time.Duration(*r.Delay) * time.Second
		}
		switch {
		case warned[len(in.Acks)+i]:
			warnings[r.Lease] = "could not be retried"
		case s.state.retry(q, r.Lease, delay):
			retried++
		default:
			warnings[r.Lease] = "lease not found"
		}
	}
	return map[string]any{"ackCount": acked, "retryCount": retried, "warnings": warnings}, nil
}

// pushed is a message as a producer sends it.
type pushed struct {
	Body  json.RawMessage `json:"body"`
	Type  string          `json:"content_type"`
	Delay *int            `json:"delay_seconds"`
}

// push takes all of a batch or nothing.
func (s *Server) push(q *queue, in []pushed) (any, *refusal) {
	if len(in) < 1 || len(in) > maxBatch {
		return nil, refuse(http.StatusBadRequest, 11015, "%d messages", len(in))
	}
	total := 0
	ms := make([]*message, len(in))
	for i, p := range in {
		m, no := s.take(q, p)
		if no != nil {
			return nil, no
		}
		total += len(m.body) + ownBytes
		ms[i] = m
	}
	if total > maxBatchBytes && len(in) > 1 {
		return nil, refuse(http.StatusRequestEntityTooLarge, 11016, "a batch of %d bytes", total)
	}
	for _, m := range ms {
		q.put(m)
	}
	return map[string]any{"metadata": map[string]any{"metrics": s.metrics(q)}}, nil
}

func (s *Server) take(q *queue, p pushed) (*message, *refusal) {
	m := &message{kind: p.Type, body: p.Body}
	switch p.Type {
	case "", "json":
		m.kind = "json"
	case "text":
		var text string
		if err := json.Unmarshal(p.Body, &text); err != nil {
			return nil, refuse(http.StatusBadRequest, 11017, "a text that is none: %s", err)
		}
		m.body = []byte(text)
	default:
		return nil, refuse(http.StatusBadRequest, 11018, "content_type %q", p.Type)
	}
	if len(m.body)+ownBytes > maxBody {
		return nil, refuse(http.StatusRequestEntityTooLarge, 11019, "a message of %d bytes", len(m.body))
	}
	if p.Delay != nil {
		delay := time.Duration(*p.Delay) * time.Second
		if delay < 0 || delay > s.state.maxDelay {
			return nil, refuse(http.StatusBadRequest, 11014, "delay_seconds %d", *p.Delay)
		}
		m.visible = time.Now().Add(delay)
	}
	return m, nil
}

func (s *Server) metrics(q *queue) map[string]any {
	s.state.sweep(q)
	oldest := int64(0)
	if e := q.messages.Front(); e != nil {
		oldest = e.Value.(*message).sent.UnixMilli()
	}
	return map[string]any{"backlog_bytes": q.size, "backlog_count": q.messages.Len(), "oldest_message_timestamp_ms": oldest}
}
