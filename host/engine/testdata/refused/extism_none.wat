(module (import "extism:host/env" "input_length" (func (result i64))) (func (export "run") (param i32) (result i32) (i32.const 0)))
