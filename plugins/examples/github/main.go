//go:build wasip1

// Github is a sample handler for the webhooks of GitHub: it takes a delivery's body as it
// came, with the event's name in the header X-GitHub-Event, and results in a summary of it
// as JSON. An event that it does not know gets the general summary; a body that is no JSON
// object is permanent.
package main

import (
	"errors"
	"strings"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

// summary is the handler's result.
type summary struct {
	Event  string `json:"event"`
	Action string `json:"action,omitempty"`
	Repo   string `json:"repo,omitempty"`
	Org    string `json:"org,omitempty"`
	Sender string `json:"sender,omitempty"`
	Text   string `json:"text"`
	URL    string `json:"url,omitempty"`
}

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func export() int64 { return guesthand.Run(handle) }

func handle(m *guesthand.Message) error {
	var e event
	if err := m.JSON(&e); err != nil {
		return err
	}
	if e == nil {
		return guesthand.Permanent(errors.New("decode the payload: null is no object"))
	}
	return m.WriteJSON(summarise(m.Header("X-GitHub-Event"), e))
}

func summarise(name string, e event) summary {
	if name == "" {
		name = "unknown"
	}
	s := summary{
		Event:  name,
		Action: e.text("action"),
		Repo:   e.text("repository", "full_name"),
		Org:    e.text("organization", "login"),
		Sender: e.text("sender", "login"),
	}
	tell, known := tellers[name]
	if !known {
		tell = tellOther
	}
	s.Text, s.URL = tell(e)
	if s.Text == "" {
		s.Text = strings.ReplaceAll(name, "_", " ")
	}
	if s.URL == "" {
		s.URL = e.text("repository", "html_url")
	}
	return s
}
