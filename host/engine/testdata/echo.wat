;; The result is the payload, read in pieces of at most 1000 bytes.
(module
  (import "guesthand_v1" "payload_size" (func $payload_size (result i32)))
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "handle") (result i64) (local $at i32) (local $n i32)
    (block $end
      (loop $more
        (local.set $n (call $payload_read (i32.const 0) (i32.const 1000) (local.get $at)))
        (br_if $end (i32.eqz (local.get $n)))
        (if (call $result_write (i32.const 0) (local.get $n)) (then (return (i64.const 12))))
        (local.set $at (i32.add (local.get $at) (local.get $n)))
        (br $more)))
    (if (result i64) (i32.eq (local.get $at) (call $payload_size))
      (then (i64.const 0)) (else (i64.const 12)))))
