;; A handler in plain WAT, the reference for every other language: it answers a message
;; with its payload in capitals. ABI.md explains each import and outcome.
;;
;;   wat2wasm handler.wat -o shout.wasm
;;   guesthand invoke shout.wasm --payload 'hello'        success, result HELLO
;;   guesthand invoke shout.wasm --payload ''             permanent, error "nothing to shout"
;;   guesthand invoke shout.wasm --payload '!'            retry-after 30s, then 60s, 90s...
(module
  (import "guesthand_v1" "payload_size" (func $payload_size (result i32)))
  (import "guesthand_v1" "payload_read"
    (func $payload_read (param $dst i32) (param $len i32) (param $offset i32) (result i32)))
  (import "guesthand_v1" "attribute_read"
    (func $attribute_read (param $name i32) (param $name_len i32) (param $dst i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param $ptr i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "error_write" (func $error_write (param $ptr i32) (param $len i32) (result i32)))

  ;; The host reads and writes this memory. 0 to 63: texts, 64 to 95: a number, from 1024: payload.
  (memory (export "memory") 1)
  (data (i32.const 0) "failures")
  (data (i32.const 8) "nothing to shout")

  (func (export "handle") (result i64)
    (local $at i32) (local $n i32) (local $i i32) (local $c i32)
    (if (i32.eqz (call $payload_size))
      (then
        (drop (call $error_write (i32.const 8) (i32.const 16)))
        (return (i64.const 12))))                      ;; permanent

    (block $done
      (loop $piece
        ;; n = what could be copied of the payload from at on; 0 is its end
        (local.set $n (call $payload_read (i32.const 1024) (i32.const 32768) (local.get $at)))
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $i (i32.const 0))
        (loop $byte
          (local.set $c (i32.load8_u offset=1024 (local.get $i)))
          (if (i32.eq (local.get $c) (i32.const 33))   ;; '!'
            (then (return (call $again))))
          (if (i32.lt_u (i32.sub (local.get $c) (i32.const 97)) (i32.const 26))
            (then (i32.store8 offset=1024 (local.get $i) (i32.sub (local.get $c) (i32.const 32)))))
          (local.set $i (i32.add (local.get $i) (i32.const 1)))
          (br_if $byte (i32.lt_u (local.get $i) (local.get $n))))
        (if (call $result_write (i32.const 1024) (local.get $n))
          (then (return (i64.const 12))))              ;; the result is too large: no retry will help
        (local.set $at (i32.add (local.get $at) (local.get $n)))
        (br $piece)))
    (i64.const 0))                                     ;; success

  ;; Retry after 30 s more for each failure so far: (30000 * (failures + 1)) << 8 | 10.
  (func $again (result i64)
    (local $n i32) (local $i i32) (local $failures i64)
    (local.set $n (call $attribute_read (i32.const 0) (i32.const 8) (i32.const 64) (i32.const 32)))
    (block $read
      (loop $digit
        (br_if $read (i32.ge_s (local.get $i) (local.get $n)))   ;; -1 where it is absent
        (local.set $failures
          (i64.add (i64.mul (local.get $failures) (i64.const 10))
            (i64.sub (i64.load8_u offset=64 (local.get $i)) (i64.const 48))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $digit)))
    (i64.or (i64.const 10)
      (i64.shl (i64.mul (i64.const 30000) (i64.add (local.get $failures) (i64.const 1))) (i64.const 8)))))
