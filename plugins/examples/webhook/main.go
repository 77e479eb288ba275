//go:build wasip1

// Webhook is a sample handler: it posts each payload to the URL in its configuration. Busy servers
// are asked again when they say (Retry-After), broken ones by the policy's backoff, and what a
// server refuses is not sent again. webhook.rs is the same in Rust.
//
//	[handlers.webhook]
//	http   = { allow = ["hooks.example.com"] }
//	config = { url = "https://hooks.example.com/orders" }
package main

import (
	"errors"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func export() int64 { return guesthand.Run(handle) }

func handle(m *guesthand.Message) error {
	url := guesthand.Config("url")
	if url == "" {
		return errors.New("config.url is not set") // a retry: the operator can mend it
	}
	contentType := m.Header("Content-Type")
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	response, err := guesthand.Fetch(guesthand.Request{
		Method: "POST",
		URL:    url,
		Header: map[string]string{
			"Content-Type":    contentType,
			"Idempotency-Key": m.ID(), // the same in every run, so that a repeat is recognisable
		},
		Body: m.Payload(),
	})
	if err != nil {
		return err
	}
	err = response.Err()
	if refused(response.Status) {
		return guesthand.Permanent(err)
	}
	return err
}

// refused tells answers that would be the same next time.
func refused(status int) bool {
	return status >= 400 && status < 500 && status != 408 && status != 429
}
