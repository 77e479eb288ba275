//go:build wasip1

// Poller is a sample handler: it waits for something slow. The payload is the URL of a status; as
// long as that answers 202 (accepted) the message waits, twice as long each time, and no attempt
// is spent. It counts its polls in the message's own state, so that it can give up by itself.
// poller.rs is the same in Rust.
package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

const (
	firstWait = 10 * time.Second
	maxPolls  = 12 // the last wait is over five hours
)

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func export() int64 { return guesthand.Run(handle) }

func handle(m *guesthand.Message) error {
	url := string(m.Payload())
	if url == "" {
		return guesthand.Permanent(errors.New("the payload is to be the URL of a status"))
	}
	response, err := guesthand.Fetch(guesthand.Request{URL: url})
	if err != nil {
		return err
	}
	if err := response.Err(); err != nil {
		return err // a retry, after the time the server asks for
	}
	if response.Status == 202 {
		return again(m)
	}
	_, err = m.Write(response.Body)
	return err
}

// again counts this poll and puts the message off.
func again(m *guesthand.Message) error {
	polls, _ := strconv.Atoi(string(m.State())) // no state is no poll
	polls++
	if polls >= maxPolls {
		return guesthand.Permanent(fmt.Errorf("not ready after %d polls", polls))
	}
	if err := m.SetState([]byte(strconv.Itoa(polls))); err != nil {
		return err
	}
	return guesthand.Delay(fmt.Errorf("not ready at poll %d", polls), firstWait<<(polls-1))
}
