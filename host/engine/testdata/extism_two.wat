;; Two functions that may take the messages. The first uses a native call beside the kernel's,
;; the second ends the process.
(module
  (import "extism:host/env" "input_length" (func $input_length (result i64)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "native")
  (func (export "first") (result i32)
    (if (i64.ne (call $input_length) (i64.const 3)) (then (return (i32.const 1))))
    (call $result_write (i32.const 0) (i32.const 6)))
  (func (export "second") (result i32)
    (call $proc_exit (i32.const 0))
    (i32.const 0)))
