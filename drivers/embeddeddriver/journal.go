package embeddeddriver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"sync"
	"sync/atomic"

	"github.com/guesthand/guesthand/drivers/natsdriver"
)

const journalDir = "journal"

// The journal's file is an array of 64-bit words in the machine's order: a page of header, then
// slots of four words. It does not move between machines.
const (
	journalMagic = 0x67686a31 // "ghj1"
	wordMagic    = 0
	wordEpoch    = 1
	wordDirty    = 2
	headerWords  = 512
	slotWords    = 4
	// journalSlots bounds how many started messages are remembered: far more than a host runs.
	journalSlots = 16 << 10
	journalWords = headerWords + journalSlots*slotWords
)

// A slot's words.
const (
	slotState = iota // free, claimed, or the epoch shifted by one with the lowest bit set
	slotSeq
	slotStamp
	slotDelivered
)

const (
	slotFree    = 0
	slotClaimed = 2
)

// journal is the file of one consumer. Its words are in memory shared with the file, so that
// what is stored survives the process.
type journal struct {
	words []uint64
	file  *mapping
	log   *slog.Logger
	epoch uint64
	next  atomic.Uint64
	full  sync.Once

	mu      sync.Mutex
	unclean bool
	open    bool // a queue uses it
}

var _ natsdriver.Journal = (*journal)(nil)

var plainName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,100}$`)

func journalName(stream, consumer string) string {
	if plainName.MatchString(stream) && plainName.MatchString(consumer) {
		return stream + "." + consumer
	}
	sum := sha256.Sum256([]byte(stream + "\x00" + consumer))
	return "x." + hex.EncodeToString(sum[:16])
}

// openJournal maps the file, made where it is missing, and begins a new epoch.
func openJournal(path string, log *slog.Logger) (*journal, error) {
	if err := allocate(path, journalWords*8); err != nil {
		return nil, err
	}
	m, err := mapFile(path, journalWords)
	if err != nil {
		return nil, err
	}
	j := &journal{words: m.words, file: m, log: log, open: true}
	switch magic := j.load(wordMagic); magic {
	case 0:
		j.store(wordMagic, journalMagic)
	case journalMagic:
	default:
		return nil, errors.Join(fmt.Errorf("%s is no journal of this version (%x): move it away", path, magic), m.close())
	}
	j.unclean = j.load(wordDirty) != 0
	j.epoch = j.load(wordEpoch) + 1
	j.store(wordEpoch, j.epoch)
	j.store(wordDirty, 1)
	return j, nil
}

// allocate makes the file at its full size: a hole in it would end the process on a full disk.
func allocate(path string, size int64) error {
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		return nil
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, make([]byte, size), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func (j *journal) load(word int) uint64 { return atomic.LoadUint64(&j.words[word]) }

func (j *journal) store(word int, v uint64) {
	atomic.StoreUint64(&j.words[word], v)
	j.file.changed(word, 1)
}

// Epoch implements natsdriver.Journal.
func (j *journal) Epoch() uint64 { return j.epoch }

// Start implements natsdriver.Journal. The state is stored last: a slot that was only
// claimed when the process died belongs to a run that had not begun.
func (j *journal) Start(s natsdriver.Started) int {
	for range journalSlots {
		slot := int(j.next.Add(1) % journalSlots)
		at := headerWords + slot*slotWords
		if !atomic.CompareAndSwapUint64(&j.words[at+slotState], slotFree, slotClaimed) {
			continue
		}
		atomic.StoreUint64(&j.words[at+slotSeq], s.Seq)
		atomic.StoreUint64(&j.words[at+slotStamp], uint64(s.Stamp))
		atomic.StoreUint64(&j.words[at+slotDelivered], s.Delivered)
		atomic.StoreUint64(&j.words[at+slotState], j.epoch<<1|1)
		j.file.changed(at, slotWords)
		return slot
	}
	j.full.Do(func() {
		j.log.Error("the journal of started messages is full: stalls of some may be missed", slog.Int("slots", journalSlots))
	})
	return -1
}

// Clear implements natsdriver.Journal.
func (j *journal) Clear(slot int) {
	if slot >= 0 {
		j.store(headerWords+slot*slotWords+slotState, slotFree)
	}
}

// Unclean implements natsdriver.Journal.
func (j *journal) Unclean() (bool, []natsdriver.Started) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.unclean {
		return false, nil
	}
	var out []natsdriver.Started
	for slot := range journalSlots {
		at := headerWords + slot*slotWords
		state := j.load(at + slotState)
		if state&1 == 0 || state>>1 >= j.epoch {
			continue
		}
		out = append(out, natsdriver.Started{
			Seq: j.load(at + slotSeq), Stamp: int64(j.load(at + slotStamp)),
			Delivered: j.load(at + slotDelivered), Epoch: state >> 1,
		})
	}
	return true, out
}

// Recovered implements natsdriver.Journal.
func (j *journal) Recovered() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.unclean {
		return nil
	}
	for slot := range journalSlots {
		at := headerWords + slot*slotWords + slotState
		if state := j.load(at); state == slotClaimed || state&1 == 1 && state>>1 < j.epoch {
			j.store(at, slotFree)
		}
	}
	j.unclean = false
	return nil
}

// Close implements natsdriver.Journal. The file is marked clean by end, after the server.
func (j *journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = false
	return nil
}

func (j *journal) reopen() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = true
}

// end unmaps the file: clean where its queues were closed and its past was dealt with.
func (j *journal) end() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.open && !j.unclean {
		j.store(wordDirty, 0)
	}
	return j.file.close()
}
