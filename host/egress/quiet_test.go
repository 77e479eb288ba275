package egress_test

import (
	"io"
	"log"
)

// quiet takes what a test's server says about handshakes that are meant to go wrong.
var quiet = log.New(io.Discard, "", 0)
