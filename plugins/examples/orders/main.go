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
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
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
func export() int64 { return guesthand.Run(handle) }

func handle(m *guesthand.Message) error {
	var o order
	if err := m.JSON(&o); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return guesthand.Permanent(fmt.Errorf("bad order %q: %w", o.ID, err))
	}
	if early := time.Until(o.NotBefore); early > 0 {
		return guesthand.Delay(fmt.Errorf("order %s is not to be handled before %s", o.ID, o.NotBefore.Format(time.RFC3339)), early)
	}
	if o.Simulate != "" && (o.Times == 0 || m.Failures()+m.Delays() < o.Times) {
		return o.simulate()
	}
	return o.complete(m)
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

func (o order) complete(m *guesthand.Message) error {
	r := receipt{Order: o.ID, Attempt: m.Attempt()}
	var cents int64
	for _, it := range o.Items {
		r.Items += it.Qty
		cents += int64(it.Qty) * int64(math.Round(it.Price*100))
	}
	r.Total = float64(cents) / 100
	guesthand.Logf(guesthand.LevelInfo, "order %s: %d items, %.2f in all", r.Order, r.Items, r.Total)
	return m.WriteJSON(r)
}

// simulate goes wrong in the way that the order asks for.
func (o order) simulate() error {
	wait, err := time.ParseDuration(o.Wait)
	if o.Wait != "" && err != nil {
		return guesthand.Permanent(fmt.Errorf("bad order %q: wait: %w", o.ID, err))
	}
	switch o.Simulate {
	case "retry":
		return errors.New("the stock service did not answer")
	case "busy":
		return guesthand.RetryAfter(errors.New("the stock service is busy"), wait)
	case "reject":
		return guesthand.Reject(fmt.Errorf("order %s is for another shop", o.ID))
	case "pause":
		return guesthand.Pause(errors.New("the stock service is closed"), wait)
	case "panic":
		var none *order
		return fmt.Errorf("%d times", none.Times)
	case "trap":
		var b byte // and a claim that there are 4 GiB of it
		payloadRead(unsafe.Pointer(&b), math.MaxUint32, 0)
	case "loop":
		for {
		}
	}
	return guesthand.Permanent(fmt.Errorf("bad order %q: it cannot simulate %q", o.ID, o.Simulate))
}

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, size, offset uint32) int32
