;; The result is how many runs this instance has seen, this one included.
(module
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_initialize") (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 48))))
  (func (export "handle") (result i64)
    (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
    (drop (call $result_write (i32.const 0) (i32.const 1)))
    (drop (call $payload_read (i32.const 16) (i32.const 1) (i32.const 0)))
    ;; g: grow by 48 MiB
    (if (i32.eq (i32.load8_u (i32.const 16)) (i32.const 103)) (then (drop (memory.grow (i32.const 768)))))
    ;; t: trap
    (if (i32.eq (i32.load8_u (i32.const 16)) (i32.const 116)) (then (unreachable)))
    ;; r: retry
    (if (i32.eq (i32.load8_u (i32.const 16)) (i32.const 114)) (then (return (i64.const 1))))
    (i64.const 0)))
