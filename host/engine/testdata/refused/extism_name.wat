(module (import "extism:host/env" "input" (func (result i64))) (func (export "run") (result i32) (i32.const 0)))
