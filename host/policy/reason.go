package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Every text a person reads about a decision is made here.

func attemptsExhausted(limit, failures int) string {
	return fmt.Sprintf("max attempts (%d) exhausted after failure %d", limit, failures)
}

func delaysExhausted(limit int) string {
	return fmt.Sprintf("max delays (%d) exhausted", limit)
}

func stallsExhausted(t drivers.Tally, p Policy) string {
	return fmt.Sprintf("max stalls (%d) exhausted after stall %d", max(0, p.MaxStalls), t.Stalls)
}

func tooOld(age, limit time.Duration) string {
	return fmt.Sprintf("max age (%v) exceeded at age %v", limit, short(age))
}

func retentionOver(wait, age, retention time.Duration) string {
	return fmt.Sprintf("a wait of %v at age %v would outlive the broker's retention (%v)",
		wait, short(age), retention)
}

func noHandler(job string) string {
	const most = 100 // a job name is whatever the producer sent
	if len(job) > most {
		job = job[:most] + "..."
	}
	if job == "" {
		return "no handler: the message names no job"
	}
	return fmt.Sprintf("no handler for job %q", job)
}

func triesExhausted(reason string, tries int) string {
	return fmt.Sprintf("%s after %d tries", reason, tries)
}

// describe is a run's end in words: `retry: upstream said 503`, `delay 6h0m0s`,
// `trap: unreachable`.
func describe(end abi.End) string {
	if end.Cause != abi.Returned {
		if end.Cause == "" {
			return described(abi.Retry.String(), end.Text)
		}
		return hostSaid(string(end.Cause), end.Text)
	}
	text := joined(end.Outcome.Text, end.Text)
	switch o := end.Outcome; o.Kind {
	case abi.Delay, abi.Pause:
		return described(fmt.Sprintf("%s %v", o.Kind, delayOf(o)), text)
	case abi.RetryAfter, abi.Permanent, abi.Reject:
		return described(o.Kind.String(), text)
	}
	return described(abi.Retry.String(), text)
}

// described puts a word before a text that does not begin with it already.
func described(word, text string) string {
	switch {
	case text == "":
		return word
	case text == word, strings.HasPrefix(text, word+":"):
		return text
	}
	return word + ": " + text
}

// hostSaid is described for the host's own texts, which may begin with the word as a
// sentence does: `cancelled by an operator`.
func hostSaid(word, text string) string {
	if strings.HasPrefix(text, word+" ") {
		return text
	}
	return described(word, text)
}

// joined is what was wrong with an outcome number followed by the run's own error text, once
// where one repeats the other.
func joined(number, own string) string {
	switch {
	case number == "" || strings.Contains(own, number):
		return own
	case own == "":
		return number
	}
	return number + ": " + own
}

// short drops the digits of an age that nobody reads.
func short(age time.Duration) time.Duration {
	if age >= time.Second {
		return age.Truncate(time.Second)
	}
	return age
}
