//go:build wasip1

// Validator is a sample handler: it checks that a payload is a JSON object with the members that
// its configuration names, and hands it on as the result. What is none becomes a dead letter
// whose reason says what is wrong. validator.rs is the same in Rust.
//
//	[handlers.validator]
//	config = { required = "id, email" }
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func export() int64 { return guesthand.Run(handle) }

func handle(m *guesthand.Message) error {
	var object map[string]json.RawMessage
	if err := m.JSON(&object); err != nil {
		return err // permanent: the next run would find the same
	}
	if object == nil {
		return guesthand.Permanent(errors.New("decode the payload: null is no object"))
	}
	var missing []string
	for name := range strings.SplitSeq(guesthand.Config("required"), ",") {
		name = strings.TrimSpace(name)
		if _, ok := object[name]; !ok && name != "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return guesthand.Permanent(fmt.Errorf("missing: %s", strings.Join(missing, ", ")))
	}
	_, err := m.Write(m.Payload())
	return err
}
