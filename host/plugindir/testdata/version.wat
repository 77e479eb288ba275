;; A handler whose result is its own version. The data come last, so that the file cut off
;; before them is a valid module too, with a result of nothing but zeros.
(module
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "handle") (result i64)
    (i64.extend_i32_u (call $result_write (i32.const 0) (i32.const 9))))
  (data (i32.const 0) "version A"))
