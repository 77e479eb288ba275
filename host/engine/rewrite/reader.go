package rewrite

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// reader decodes one stretch of a module. The first error sticks: every later read
// answers zero, so that loops end and callers check once.
type reader struct {
	b    []byte
	pos  int
	base int // offset of b in the module, for messages
	err  error
}

func (r *reader) fail(cause error, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("offset %#x: %s: %w", r.base+r.pos, fmt.Sprintf(format, args...), cause)
	}
}

func (r *reader) malformed(format string, args ...any) { r.fail(ErrMalformed, format, args...) }
func (r *reader) unknown(format string, args ...any)   { r.fail(ErrUnknown, format, args...) }

func (r *reader) left() int { return len(r.b) - r.pos }

// more says whether bytes are left to read.
func (r *reader) more() bool { return r.err == nil && r.pos < len(r.b) }

func (r *reader) rest() []byte { return r.bytes(r.left()) }

func (r *reader) byte() byte {
	if r.err != nil || r.pos >= len(r.b) {
		r.malformed("unexpected end")
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

// bytes returns the next n bytes, not copied.
func (r *reader) bytes(n int) []byte {
	if r.err != nil || n < 0 || n > r.left() {
		r.malformed("unexpected end")
		return nil
	}
	b := r.b[r.pos : r.pos+n : r.pos+n]
	r.pos += n
	return b
}

// u32 reads an unsigned LEB128 of at most 5 bytes whose unused bits are zero.
func (r *reader) u32() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		v |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			if v > math.MaxUint32 {
				r.malformed("integer over 32 bits")
				return 0
			}
			return uint32(v)
		}
	}
	r.malformed("integer over 5 bytes")
	return 0
}

// signed reads a signed LEB128 of the given width: 32, 33 or 64 bits.
func (r *reader) signed(width int) int64 {
	var v int64
	for shift := 0; shift < width; shift += 7 {
		c := r.byte()
		v |= int64(c&0x7f) << shift
		if c&0x80 != 0 {
			continue
		}
		if used := width - shift; used < 7 {
			// The bits beyond the width repeat the sign bit.
			if top := int8(c<<1) >> used; top != 0 && top != -1 {
				r.malformed("integer over %d bits", width)
				return 0
			}
		}
		if shift+7 < 64 {
			v = v << (64 - shift - 7) >> (64 - shift - 7)
		}
		return v
	}
	r.malformed("integer over %d bits", width)
	return 0
}

// count reads the length of a vector whose items take at least size bytes each.
func (r *reader) count(size int) int {
	n := r.u32()
	if int64(n)*int64(size) > int64(r.left()) {
		r.malformed("count %d beyond the section", n)
		return 0
	}
	return int(n)
}

// name reads a length and that many bytes of UTF-8.
func (r *reader) name() string {
	b := r.bytes(r.count(1))
	if !utf8.Valid(b) {
		r.malformed("name is not UTF-8")
		return ""
	}
	return string(b)
}

// end fails unless everything was read.
func (r *reader) end() {
	if r.err == nil && r.pos != len(r.b) {
		r.malformed("%d bytes too many", r.left())
	}
}
