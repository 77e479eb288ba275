package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// A block holds rows that were written together. Its layout, all numbers varints:
//
//	version, number of texts, then each text (length, bytes)
//	number of rows, then each row:
//	  id (length, bytes), attempt, code, delay ns, finished ns since the row before,
//	  started as ns before finished, plus one (0: not known), result (length, bytes),
//	  and the indexes of queue, job, outcome, cause, error, settlement, digest, worker
//
// Texts that repeat from row to row are thus stored once.

const packVersion = 1

var errBlock = errors.New("damaged block")

// packed is a block and what is stored beside it to find it by.
type packed struct {
	first, last int64 // finished, Unix ns
	rows        int
	names       map[name]struct{}
	ids         []byte // a Bloom filter
	data        []byte
}

// name is what whole blocks are passed over by.
type name struct{ Queue, Job, Outcome string }

// pack makes a block of rows, of which there must be at least one.
func pack(rows []Row) packed {
	p := packed{rows: len(rows), names: map[name]struct{}{}, ids: newIDs(len(rows))}
	var texts []string
	index := map[string]uint64{}
	ref := func(s string) uint64 {
		i, ok := index[s]
		if !ok {
			i = uint64(len(texts))
			index[s] = i
			texts = append(texts, s)
		}
		return i
	}
	body := make([]byte, 0, 64*len(rows))
	last := int64(0)
	for i := range rows {
		r := &rows[i]
		finished := unixNano(r.Finished)
		if i == 0 {
			p.first, p.last = finished, finished
		}
		p.first, p.last = min(p.first, finished), max(p.last, finished)
		p.names[name{r.Queue, r.Job, r.Outcome}] = struct{}{}
		addID(p.ids, r.ID)
		body = appendText(body, r.ID)
		body = binary.AppendVarint(body, int64(r.Attempt))
		body = binary.AppendVarint(body, int64(r.Code))
		body = binary.AppendVarint(body, int64(r.Delay))
		body = binary.AppendVarint(body, finished-last)
		last = finished
		body = appendStarted(body, r.Started, finished)
		body = appendText(body, string(r.Result))
		for _, s := range [...]string{r.Queue, r.Job, r.Outcome, r.Cause, r.Error, r.Settlement, r.Digest, r.Worker} {
			body = binary.AppendUvarint(body, ref(s))
		}
	}
	p.data = binary.AppendUvarint(nil, packVersion)
	p.data = binary.AppendUvarint(p.data, uint64(len(texts)))
	for _, s := range texts {
		p.data = appendText(p.data, s)
	}
	p.data = binary.AppendUvarint(p.data, uint64(len(rows)))
	p.data = append(p.data, body...)
	return p
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendStarted writes 0 for not known, else one more than the zigzag of the run's length.
func appendStarted(b []byte, started time.Time, finished int64) []byte {
	if started.IsZero() {
		return binary.AppendUvarint(b, 0)
	}
	took := finished - unixNano(started)
	zigzag := uint64(took)<<1 ^ uint64(took>>63)
	return binary.AppendUvarint(b, zigzag+1)
}

// unpack returns a block's rows in the order they were written. They share no memory with data.
func unpack(data []byte) ([]Row, error) {
	d := decoder{b: data}
	if v := d.uvarint(); d.err == nil && v != packVersion {
		return nil, fmt.Errorf("block of version %d", v)
	}
	texts := make([]string, d.count())
	for i := range texts {
		texts[i] = d.text()
	}
	rows := make([]Row, d.count())
	finished := int64(0)
	for i := range rows {
		r := &rows[i]
		r.ID = d.text()
		r.Attempt, r.Code, r.Delay = int(d.varint()), int(d.varint()), time.Duration(d.varint())
		finished += d.varint()
		r.Finished = fromUnixNano(finished)
		if v := d.uvarint(); v > 0 {
			v--
			r.Started = fromUnixNano(finished - int64(v>>1^-(v&1)))
		}
		if s := d.text(); s != "" {
			r.Result = []byte(s)
		}
		for _, to := range [...]*string{&r.Queue, &r.Job, &r.Outcome, &r.Cause, &r.Error, &r.Settlement, &r.Digest, &r.Worker} {
			*to = d.ref(texts)
		}
		if d.err != nil {
			break
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	return rows, nil
}

// decoder reads a block; after the first fault it yields zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	d.b, d.err = nil, errBlock
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a number of things that take at least a byte each.
func (d *decoder) count() int {
	v := d.uvarint()
	if v > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(v)
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) ref(texts []string) string {
	i := d.uvarint()
	if i >= uint64(len(texts)) {
		d.fail()
		return ""
	}
	return texts[i]
}

// unixNano is a time as the file has it, 0 for one that is not known.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromUnixNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// The ids of a block are in a Bloom filter: 10 bits and 7 hashes for each make about 1 of 100
// blocks be read in vain.

func newIDs(n int) []byte { return make([]byte, (10*n+7)/8) }

func addID(ids []byte, id string) {
	eachBit(ids, id, func(i uint64) bool {
		ids[i/8] |= 1 << (i % 8)
		return true
	})
}

func mayHaveID(ids []byte, id string) bool {
	found := len(ids) > 0
	eachBit(ids, id, func(i uint64) bool {
		found = ids[i/8]&(1<<(i%8)) != 0
		return found
	})
	return found
}

func eachBit(ids []byte, id string, use func(i uint64) bool) {
	if len(ids) == 0 {
		return
	}
	// FNV-1a: it is on disk, so it must stay the same from start to start.
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	a, b := h, h>>32|1
	for range 7 {
		if !use(a % uint64(8*len(ids))) {
			return
		}
		a += b
	}
}
