;; The payload is a number of times (1 byte), a head's length (2 bytes), a header's name's length
;; (2 bytes), the head, the name, and a body: an HTTP request to make so often, and the header to
;; read of the last response. The result is what http_send, http_header_read and http_body_size
;; returned, 4 bytes each, the header's value and the body.
(module
  (import "guesthand_v1" "payload_size" (func $payload_size (result i32)))
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (import "guesthand_v1" "http_send" (func $http_send (param i32 i32 i32 i32) (result i32)))
  (import "guesthand_v1" "http_header_read" (func $http_header_read (param i32 i32 i32 i32) (result i32)))
  (import "guesthand_v1" "http_body_size" (func $http_body_size (result i32)))
  (import "guesthand_v1" "http_body_read" (func $http_body_read (param i32 i32 i32) (result i32)))
  (memory (export "memory") 8)
  (func (export "handle") (result i64)
    (local $n i32) (local $end i32) (local $head i32) (local $headn i32) (local $name i32) (local $namen i32) (local $body i32) (local $at i32) (local $got i32)
    (local.set $end (i32.add (i32.const 4096) (call $payload_read (i32.const 4096) (call $payload_size) (i32.const 0))))
    (local.set $n (i32.load8_u (i32.const 4096)))
    (local.set $headn (i32.load16_u align=1 (i32.const 4097)))
    (local.set $namen (i32.load16_u align=1 (i32.const 4099)))
    (local.set $head (i32.const 4101))
    (local.set $name (i32.add (local.get $head) (local.get $headn)))
    (local.set $body (i32.add (local.get $name) (local.get $namen)))
    (loop $again
      (i32.store (i32.const 0) (call $http_send (local.get $head) (local.get $headn) (local.get $body) (i32.sub (local.get $end) (local.get $body))))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.store (i32.const 4) (call $http_header_read (local.get $name) (local.get $namen) (i32.const 16) (i32.const 1024)))
    (i32.store (i32.const 8) (call $http_body_size))
    (drop (call $result_write (i32.const 0) (i32.const 12)))
    (if (i32.gt_s (i32.load (i32.const 4)) (i32.const 0))
      (then (drop (call $result_write (i32.const 16) (select (i32.load (i32.const 4)) (i32.const 1024) (i32.lt_u (i32.load (i32.const 4)) (i32.const 1024)))))))
    ;; the body in pieces
    (loop $piece
      (local.set $got (call $http_body_read (i32.const 16) (i32.const 1000) (local.get $at)))
      (if (i32.gt_s (local.get $got) (i32.const 0))
        (then
          (drop (call $result_write (i32.const 16) (local.get $got)))
          (local.set $at (i32.add (local.get $at) (local.get $got)))
          (br $piece))))
    (i64.const 0)))
