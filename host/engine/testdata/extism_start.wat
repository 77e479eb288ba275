;; A plug-in that is a program: it exits with its input's first byte, after counting its runs
;; into the output.
(module
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "input_load_u8" (func $input_load_u8 (param i64) (result i32)))
  (import "extism:host/env" "store_u8" (func $store_u8 (param i64 i32)))
  (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $out i64)
    (i32.store8 (i32.const 0) (i32.add (i32.load8_u (i32.const 0)) (i32.const 1)))
    (local.set $out (call $alloc (i64.const 1)))
    (call $store_u8 (local.get $out) (i32.load8_u (i32.const 0)))
    (call $output_set (local.get $out) (i64.const 1))
    (call $proc_exit (call $input_load_u8 (i64.const 0)))))
