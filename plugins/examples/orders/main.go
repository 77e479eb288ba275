//go:build wasip1

// Orders is a sample handler: it checks an order and adds up its total. An order can also
// say what should go wrong, so that every outcome can be seen:
//
//	{"id": "1001", "items": [{"sku": "tea", "qty": 2, "price": 3.50}]}
//	                                       0 success, the total is the result
//	"simulate": "retry"                    1 retry, with the policy's backoff
//	"simulate": "busy", "wait": "30s"     10 retry-after 30 s
//	"not_before": "2030-01-01T08:00:00Z"  11 delay until then
//	no items, a bad price, not JSON       12 permanent
//	"simulate": "reject"                  13 reject
//	"simulate": "pause", "wait": "1m"     14 pause the job for a minute
//	"simulate": "panic"                   a Go panic, which ends in a trap
//	"simulate": "trap"                    a trap without a word: a range outside the memory
//	"simulate": "loop"                    a loop without end: the timeout
//
// With "times": 2 the simulation ends after two failures and the order succeeds; delays and
// pauses are counted likewise.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
	"unsafe"
)

type order struct {
	ID        string    `json:"id"`
	Items     []item    `json:"items"`
	NotBefore time.Time `json:"not_before"`

	Simulate string `json:"simulate"`
	Wait     string `json:"wait"`
	Times    int    `json:"times"`
}

type item struct {
	SKU   string  `json:"sku"`
	Qty   int     `json:"qty"`
	Price float64 `json:"price"`
}

type receipt struct {
	Order   string  `json:"order"`
	Items   int     `json:"items"`
	Total   float64 `json:"total"`
	Attempt int     `json:"attempt"`
}

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func handle() int64 {
	var o order
	if err := json.Unmarshal(payload(), &o); err != nil {
		return fail(permanent, "not an order: %v", err)
	}
	if err := o.check(); err != nil {
		return fail(permanent, "bad order %q: %v", o.ID, err)
	}
	if early := time.Until(o.NotBefore); early > 0 {
		return fail(delay, "order %s is not to be handled before %s", o.ID, o.NotBefore.Format(time.RFC3339)) | milliseconds(early)
	}
	if o.Simulate != "" && (o.Times == 0 || o.setbacks() < o.Times) {
		return o.simulate()
	}
	return o.complete()
}

// check says what is wrong with an order.
func (o order) check() error {
	if o.ID == "" {
		return fmt.Errorf("it has no id")
	}
	if len(o.Items) == 0 {
		return fmt.Errorf("it has no items")
	}
	for i, it := range o.Items {
		switch {
		case it.SKU == "":
			return fmt.Errorf("item %d has no sku", i+1)
		case it.Qty < 1:
			return fmt.Errorf("item %d (%s): quantity %d", i+1, it.SKU, it.Qty)
		case it.Price < 0:
			return fmt.Errorf("item %d (%s): price %.2f", i+1, it.SKU, it.Price)
		}
	}
	return nil
}

func (o order) complete() int64 {
	r := receipt{Order: o.ID, Attempt: number("attempt")}
	var cents int64
	for _, it := range o.Items {
		r.Items += it.Qty
		cents += int64(it.Qty) * int64(math.Round(it.Price*100))
	}
	r.Total = float64(cents) / 100
	b, err := json.Marshal(r)
	if err != nil {
		return fail(retry, "write the receipt: %v", err)
	}
	logWrite(levelInfo, fmt.Sprintf("order %s: %d items, %.2f in all", r.Order, r.Items, r.Total))
	resultWrite(string(b))
	return success
}

// setbacks is how often this message failed or was put off before.
func (o order) setbacks() int { return number("failures") + number("delays") }

// simulate goes wrong in the way that the order asks for.
func (o order) simulate() int64 {
	wait, err := time.ParseDuration(o.Wait)
	if o.Wait != "" && err != nil {
		return fail(permanent, "bad order %q: wait: %v", o.ID, err)
	}
	switch o.Simulate {
	case "retry":
		return fail(retry, "the stock service did not answer")
	case "busy":
		return fail(retryAfter, "the stock service is busy") | milliseconds(wait)
	case "reject":
		return fail(reject, "order %s is for another shop", o.ID)
	case "pause":
		return fail(pause, "the stock service is closed") | milliseconds(wait)
	case "panic":
		var none *order
		return int64(none.Times)
	case "trap":
		var b byte // and a claim that there are 4 GiB of it
		payloadRead(unsafe.Pointer(&b), math.MaxUint32, 0)
	case "loop":
		for {
		}
	}
	return fail(permanent, "bad order %q: it cannot simulate %q", o.ID, o.Simulate)
}

// fail sets the run's error text and returns the outcome code.
func fail(code int64, format string, args ...any) int64 {
	errorWrite(fmt.Sprintf(format, args...))
	return code
}

// milliseconds is a wait as the outcome carries it, rounded up.
func milliseconds(d time.Duration) int64 {
	return (d + time.Millisecond - 1).Milliseconds() << 8
}

func number(name string) int {
	n, err := strconv.Atoi(attribute(name))
	if err != nil {
		return 0
	}
	return n
}
