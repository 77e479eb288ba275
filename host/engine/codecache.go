package engine

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
)

const (
	// maxCache bounds the compiled code that is kept, bytes; the oldest goes first.
	maxCache = 2 << 30
	// staleTemp is how old an unfinished entry must be to be left over from a crash.
	staleTemp = time.Hour
)

// codeCache is compiled code kept on disk between starts. wazero fails for ever on an
// entry that is damaged, and believes the lengths it reads there; so entries are looked at
// before wazero does, and a damaged one is deleted.
type codeCache struct {
	dir    string // "" when nothing is kept
	logger *slog.Logger
	wazero wazero.CompilationCache
}

func openCodeCache(dir string, logger *slog.Logger) (*codeCache, error) {
	c := &codeCache{dir: dir, logger: logger}
	if dir == "" {
		c.wazero = wazero.NewCompilationCache()
		return c, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create code cache: %w", err)
	}
	c.sweep(false)
	c.prune()
	var err error
	if c.wazero, err = wazero.NewCompilationCacheWithDir(dir); err != nil {
		return nil, fmt.Errorf("open code cache: %w", err)
	}
	return c, nil
}

func (c *codeCache) close() error {
	return c.wazero.Close(context.Background())
}

// mend looks for the cause of a failed compilation in the cache, and returns true when it
// is worth another try.
func (c *codeCache) mend(wasm []byte, cause error) bool {
	if c.dir == "" {
		return false
	}
	if c.sweep(true) > 0 {
		return true
	}
	var io *fs.PathError
	if errors.As(cause, &io) {
		// The code is compiled and in memory, and only could not be kept.
		c.logger.Warn("compiled code could not be kept", "err", cause)
		return true
	}
	if !compilesUncached(wasm) {
		return false
	}
	// It is the cache, in a way that sweep does not see.
	c.logger.Warn("the code cache is damaged and made anew", "dir", c.dir, "err", cause)
	for _, e := range c.entries() {
		c.remove(e.path)
	}
	return true
}

// compilesUncached tells whether a module is good by itself.
func compilesUncached(wasm []byte) bool {
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig())
	_, err := compileOnce(r, wasm)
	return errors.Join(err, r.Close(ctx)) == nil
}

type cacheEntry struct {
	path string
	size int64
	time time.Time
}

// entries lists the finished entries of every version of wazero, oldest first.
func (c *codeCache) entries() []cacheEntry {
	paths, err := filepath.Glob(filepath.Join(escapeGlob(c.dir), "wazero-*", "*"))
	if err != nil {
		c.logger.Warn("code cache cannot be listed", "dir", c.dir, "err", err)
	}
	var list []cacheEntry
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil || !info.Mode().IsRegular():
		case strings.HasSuffix(path, ".tmp"):
			if time.Since(info.ModTime()) > staleTemp {
				c.remove(path)
			}
		default:
			list = append(list, cacheEntry{path: path, size: info.Size(), time: info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b cacheEntry) int {
		return cmp.Or(a.time.Compare(b.time), strings.Compare(a.path, b.path))
	})
	return list
}

func escapeGlob(dir string) string {
	if os.PathSeparator == '\\' {
		return dir // Glob knows no escapes there
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// sweep deletes damaged entries and returns how many; with whole, code is compared with
// its checksum too.
func (c *codeCache) sweep(whole bool) (deleted int) {
	for _, e := range c.entries() {
		if err := checkCacheEntry(e, whole); err != nil {
			c.logger.Warn("damaged compiled code is deleted and made anew", "file", e.path, "err", err)
			c.remove(e.path)
			deleted++
		}
	}
	return deleted
}

func (c *codeCache) prune() {
	list := c.entries()
	total := int64(0)
	for _, e := range list {
		total += e.size
	}
	for _, e := range list {
		if total <= maxCache {
			return
		}
		total -= e.size
		c.remove(e.path)
	}
}

func (c *codeCache) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.logger.Warn("compiled code cannot be deleted", "file", path, "err", err)
	}
}

// checkCacheEntry reads an entry the way wazero 1.12 does: "WAZEVO", the version with its
// length, the number of functions, an offset for each, the code with its length and CRC-32C.
// What follows (source positions, catch clauses) is short and read with care by wazero.
func checkCacheEntry(e cacheEntry, whole bool) error {
	f, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	head := make([]byte, len(cacheMagic)+1)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if string(head[:len(cacheMagic)]) != cacheMagic {
		return errors.New("header: not wazero's")
	}
	// The version is wazero's to judge: it discards another version's entry by itself.
	if _, err := r.Discard(int(head[len(cacheMagic)])); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	var count uint32
	if err := binary.Read(r, binary.LittleEndian, &count); err != nil {
		return fmt.Errorf("functions: %w", err)
	}
	if int64(count)*8 > e.size {
		return fmt.Errorf("%d functions in %d bytes", count, e.size)
	}
	offsets := make([]uint64, count+1) // the last one is the code's length
	if err := binary.Read(r, binary.LittleEndian, offsets); err != nil {
		return fmt.Errorf("offsets: %w", err)
	}
	size := offsets[count]
	if !slices.IsSorted(offsets) || size > uint64(e.size) {
		return errors.New("offsets out of order")
	}
	if !whole {
		return nil
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.CopyN(sum, r, int64(size)); err != nil {
		return fmt.Errorf("code: %w", err)
	}
	var want uint32
	if err := binary.Read(r, binary.LittleEndian, &want); err != nil {
		return fmt.Errorf("checksum: %w", err)
	}
	if sum.Sum32() != want {
		return errors.New("checksum mismatch")
	}
	return nil
}

const cacheMagic = "WAZEVO"
