;; Ping is a sample handler in WebAssembly text: it answers "pong " and the payload, of which
;; it copies at most the 64 KiB of its second page. An empty payload is answered with "pong".
(module
  (import "guesthand_v1" "payload_read" (func $payload_read (param $dst i32) (param $len i32) (param $offset i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param $ptr i32) (param $len i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 65531) "pong ")
  (func (export "handle") (result i64)
    (local $size i32)
    (local.set $size (call $payload_read (i32.const 65536) (i32.const 65536) (i32.const 0)))
    ;; "pong " ends where the payload begins; without a payload the space is left out.
    (if (call $result_write
          (i32.const 65531)
          (i32.add (i32.const 4)
            (if (result i32) (local.get $size)
              (then (i32.add (i32.const 1) (local.get $size)))
              (else (i32.const 0)))))
      ;; 12, permanent: the result is over its limit and would be so again
      (then (return (i64.const 12))))
    (i64.const 0)))
