package engine

import (
	"encoding/binary"
)

// clampTables gives every table of a module that is not metered what metering gives the
// others: a maximum of at most maxTable elements. wazero keeps
// tables on the Go heap and table.grow asks nobody: without a maximum one instruction
// allocates 32 GiB, which ends the process. A guest that grows over it gets -1.
func clampTables(core []byte) ([]byte, error) {
	r := reader{b: core[len(moduleHeader):]}
	for len(r.b) > 0 {
		start := len(core) - len(r.b)
		id, body, err := r.section()
		if err != nil {
			return nil, err
		}
		if id != sectionTable {
			continue
		}
		clamped, err := clampTableSection(body)
		if err != nil {
			return nil, err
		}
		out := make([]byte, 0, len(core)+len(clamped)-len(body)+binary.MaxVarintLen32)
		out = append(out, core[:start]...)
		out = append(out, sectionTable)
		out = binary.AppendUvarint(out, uint64(len(clamped)))
		out = append(out, clamped...)
		return append(out, r.b...), nil
	}
	return core, nil
}

func clampTableSection(body []byte) ([]byte, error) {
	r := reader{b: body}
	n, err := r.u32()
	if err != nil {
		return nil, err
	}
	out := binary.AppendUvarint(nil, uint64(n))
	for ; n > 0; n-- {
		if len(r.b) == 0 {
			return nil, errEnd
		}
		element := r.b[0]
		l, err := r.table()
		if err != nil {
			return nil, err
		}
		limit := uint64(maxTable)
		if l.hasMax {
			limit = min(limit, l.max)
		}
		out = append(out, element, 1)
		out = binary.AppendUvarint(out, l.min)
		out = binary.AppendUvarint(out, limit)
	}
	return append(out, r.b...), nil
}
