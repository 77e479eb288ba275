;; The payload is a list of operations: a letter, the first argument's length (2 bytes), a
;; number (8 bytes), the second argument's length (4 bytes), and both arguments. g, p, c and d
;; are kv_get, kv_put, kv_create and kv_delete, s is message_send, r returns the number. t
;; counts in the state and returns a delay of 1 ms until it has counted to the number. The
;; result is each operation's own, 4 bytes, with the value after that of g.
(module
  (import "guesthand_v1" "payload_size" (func $payload_size (result i32)))
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (import "guesthand_v1" "kv_get" (func $kv_get (param i32 i32 i32 i32) (result i32)))
  (import "guesthand_v1" "kv_put" (func $kv_put (param i32 i32 i32 i32 i64) (result i32)))
  (import "guesthand_v1" "kv_create" (func $kv_create (param i32 i32 i32 i32 i64) (result i32)))
  (import "guesthand_v1" "kv_delete" (func $kv_delete (param i32 i32) (result i32)))
  (import "guesthand_v1" "message_send" (func $message_send (param i32 i32 i32 i32) (result i32)))
  (import "guesthand_v1" "state_read" (func $state_read (param i32 i32) (result i32)))
  (import "guesthand_v1" "state_write" (func $state_write (param i32 i32) (result i32)))
  (memory (export "memory") 8)
  (func (export "handle") (result i64)
    (local $at i32) (local $end i32) (local $op i32) (local $a i32) (local $an i32) (local $n i64) (local $b i32) (local $bn i32) (local $r i32)
    (local.set $at (i32.const 1024))
    (local.set $end (i32.add (i32.const 1024) (call $payload_read (i32.const 1024) (call $payload_size) (i32.const 0))))
    (loop $next
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (return (i64.const 0))))
      (local.set $op (i32.load8_u (local.get $at)))
      (local.set $an (i32.load16_u offset=1 align=1 (local.get $at)))
      (local.set $n (i64.load offset=3 align=1 (local.get $at)))
      (local.set $bn (i32.load offset=11 align=1 (local.get $at)))
      (local.set $a (i32.add (local.get $at) (i32.const 15)))
      (local.set $b (i32.add (local.get $a) (local.get $an)))
      (local.set $at (i32.add (local.get $b) (local.get $bn)))
      (if (i32.eq (local.get $op) (i32.const 0x72)) (then (return (local.get $n)))) ;; r
      (if (i32.eq (local.get $op) (i32.const 0x67)) ;; g
        (then (local.set $r (call $kv_get (local.get $a) (local.get $an) (i32.const 8) (i32.const 1016)))))
      (if (i32.eq (local.get $op) (i32.const 0x70)) ;; p
        (then (local.set $r (call $kv_put (local.get $a) (local.get $an) (local.get $b) (local.get $bn) (local.get $n)))))
      (if (i32.eq (local.get $op) (i32.const 0x63)) ;; c
        (then (local.set $r (call $kv_create (local.get $a) (local.get $an) (local.get $b) (local.get $bn) (local.get $n)))))
      (if (i32.eq (local.get $op) (i32.const 0x64)) ;; d
        (then (local.set $r (call $kv_delete (local.get $a) (local.get $an)))))
      (if (i32.eq (local.get $op) (i32.const 0x73)) ;; s
        (then (local.set $r (call $message_send (local.get $a) (local.get $an) (local.get $b) (local.get $bn)))))
      (if (i32.eq (local.get $op) (i32.const 0x74)) ;; t
        (then
          (drop (call $state_read (i32.const 8) (i32.const 4)))
          (local.set $r (i32.load (i32.const 8)))
          (if (i32.lt_u (local.get $r) (i32.wrap_i64 (local.get $n)))
            (then
              (i32.store (i32.const 8) (i32.add (local.get $r) (i32.const 1)))
              (drop (call $state_write (i32.const 8) (i32.const 4)))
              (return (i64.const 267)))))) ;; 11 | 1<<8
      (i32.store (i32.const 0) (local.get $r))
      (drop (call $result_write (i32.const 0) (i32.const 4)))
      (if (i32.and (i32.eq (local.get $op) (i32.const 0x67)) (i32.gt_s (local.get $r) (i32.const 0)))
        (then (drop (call $result_write (i32.const 8) (select (local.get $r) (i32.const 1016) (i32.lt_u (local.get $r) (i32.const 1016)))))))
      (br $next))
    (i64.const 0)))
