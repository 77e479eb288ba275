package cftest

import (
	"net/http"
	"regexp"
	"time"
)

// legalName is what Cloudflare calls a queue.
var legalName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

func (s *Server) create(body []byte) (any, *refusal) {
	var in struct {
		Name string `json:"queue_name"`
	}
	if no := strict(body, &in); no != nil {
		return nil, no
	}
	if !legalName.MatchString(in.Name) {
		return nil, refuse(http.StatusBadRequest, 11003, "queue name %q", in.Name)
	}
	if s.state.find(in.Name) != nil {
		return nil, refuse(http.StatusConflict, 11009, "queue name %q is already taken", in.Name)
	}
	return s.state.add(in.Name).describe(), nil
}

func (q *queue) describe() map[string]any {
	list := q.consumers()
	return map[string]any{
		"queue_id": q.id, "queue_name": q.name, "created_on": "2026-01-02T03:04:05Z", "modified_on": "2026-01-02T03:04:05Z",
		"producers": []any{}, "producers_total_count": 0, "consumers": list, "consumers_total_count": len(list),
		"settings": map[string]any{
			"delivery_delay": int(q.delay.Seconds()), "delivery_paused": q.paused,
			"message_retention_period": int(q.retention.Seconds()),
		},
	}
}

func (q *queue) consumers() []any {
	c := q.consumer
	if c == nil {
		return []any{}
	}
	d := map[string]any{"consumer_id": c.id, "created_on": "2026-01-02T03:04:05Z", "queue_name": q.name, "type": c.kind, "dead_letter_queue": c.dead}
	settings := map[string]any{"batch_size": c.batch, "max_retries": c.maxRetries, "retry_delay": int(c.retryDelay.Seconds())}
	if c.kind == "worker" {
		d["script_name"] = "a-worker"
		settings["max_wait_time_ms"] = 5000
	} else {
		settings["visibility_timeout_ms"] = c.visibility.Milliseconds()
	}
	d["settings"] = settings
	return []any{d}
}

func (s *Server) addConsumer(q *queue, body []byte) (any, *refusal) {
	var in struct {
		Type     string `json:"type"`
		Script   string `json:"script_name"`
		Dead     string `json:"dead_letter_queue"`
		Settings struct {
			Batch      *int `json:"batch_size"`
			MaxRetries *int `json:"max_retries"`
			RetryDelay *int `json:"retry_delay"`
			Visibility *int `json:"visibility_timeout_ms"`
		} `json:"settings"`
	}
	if no := strict(body, &in); no != nil {
		return nil, no
	}
	switch {
	case q.consumer != nil:
		return nil, refuse(http.StatusConflict, 11004, "queue %s has a consumer already", q.name)
	case in.Type != "http_pull":
		return nil, refuse(http.StatusBadRequest, 11005, "type %q", in.Type)
	case in.Dead != "" && s.state.find(in.Dead) == nil:
		return nil, refuse(http.StatusBadRequest, 11006, "dead letter queue %q does not exist", in.Dead)
	}
	c := newConsumer(in.Type)
	c.dead = in.Dead
	if n := in.Settings.MaxRetries; n != nil {
		if *n < 0 || *n > maxRetries {
			return nil, refuse(http.StatusBadRequest, 11007, "max_retries %d", *n)
		}
		c.maxRetries = *n
	}
	if n := in.Settings.RetryDelay; n != nil {
		c.retryDelay = time.Duration(*n) * time.Second
	}
	q.consumer = c
	return q.consumers()[0], nil
}

func (q *queue) edit(body []byte) (any, *refusal) {
	var in struct {
		Name     string `json:"queue_name"`
		Settings struct {
			Delay     *int  `json:"delivery_delay"`
			Paused    *bool `json:"delivery_paused"`
			Retention *int  `json:"message_retention_period"`
		} `json:"settings"`
	}
	if no := strict(body, &in); no != nil {
		return nil, no
	}
	if n := in.Settings.Retention; n != nil {
		d := time.Duration(*n) * time.Second
		if d < minRetention || d > maxRetention {
			return nil, refuse(http.StatusBadRequest, 11008, "message_retention_period %d", *n)
		}
		q.retention = d
	}
	return q.describe(), nil
}
