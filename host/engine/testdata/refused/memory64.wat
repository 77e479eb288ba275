(module (memory (export "memory") i64 1) (func (export "handle") (result i64) (i64.const 0)))
