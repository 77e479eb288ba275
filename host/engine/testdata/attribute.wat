;; The payload names an attribute. The result is its size, 4 bytes, and its value.
(module
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "attribute_read" (func $attribute_read (param i32 i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (func (export "handle") (result i64) (local $name i32) (local $size i32)
    (local.set $name (call $payload_read (i32.const 0) (i32.const 1024) (i32.const 0)))
    (local.set $size (call $attribute_read (i32.const 0) (local.get $name) (i32.const 2048) (i32.const 100)))
    (i32.store (i32.const 1024) (local.get $size))
    (drop (call $result_write (i32.const 1024) (i32.const 4)))
    (if (i32.lt_s (local.get $size) (i32.const 0)) (then (return (i64.const 0))))
    ;; once more with all the room it needs
    (if (i32.gt_s (local.get $size) (i32.const 100))
      (then (drop (call $attribute_read (i32.const 0) (local.get $name) (i32.const 2048) (local.get $size)))))
    (drop (call $result_write (i32.const 2048) (local.get $size)))
    (i64.const 0)))
