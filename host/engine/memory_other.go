//go:build !unix

package engine

func newSpace(most uint64, _ bool) space { return &heapSpace{most: most} }
