//go:build !unix

package plugindir_test

import "errors"

func mkfifo(string) error { return errors.ErrUnsupported }
