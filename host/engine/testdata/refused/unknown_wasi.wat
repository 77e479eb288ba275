(module (import "wasi_snapshot_preview1" "sock_open" (func (param i32) (result i32))) (memory (export "memory") 1) (func (export "handle") (result i64) (i64.const 0)))
