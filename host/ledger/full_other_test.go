//go:build !unix

package ledger_test

import (
	"errors"

	"github.com/guesthand/guesthand/host/ledger"
)

const canFillDisk = false

func fillDisk(*ledger.Ledger) error { return errors.ErrUnsupported }
