;; One native module for every way a run can go wrong; the payload's first byte chooses.
(module
  (import "guesthand_v1" "payload_read" (func $payload_read (param i32 i32 i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param i32 i32) (result i32)))
  (import "guesthand_v1" "error_write" (func $error_write (param i32 i32) (result i32)))
  (import "guesthand_v1" "log_write" (func $log_write (param i32 i32 i32)))
  (import "guesthand_v1" "remaining" (func $remaining (result i64)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (table $t 1 funcref)
  (type $void (func))
  (global $n (mut i32) (i32.const 0))
  (data (i32.const 256) "out of patience")
  (data (i32.const 512) "panic: boom\nstack of the guest\n")

  (func $fib (param i32) (result i32)
    (if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
      (then (i32.const 1))
      (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1)))
                     (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
  (func $recurse (param i32) (result i32)
    (i32.add (i32.const 1) (call $recurse (i32.add (local.get 0) (i32.const 1)))))
  ;; 2^40 calls without a loop and without recursion.
  (func $c0 (call $c1) (call $c1))
  (func $c1 (call $c2) (call $c2))
  (func $c2 (call $c3) (call $c3))
  (func $c3 (call $c4) (call $c4))
  (func $c4 (call $c5) (call $c5))
  (func $c5 (call $c6) (call $c6))
  (func $c6 (call $c7) (call $c7))
  (func $c7 (call $c8) (call $c8))
  (func $c8 (call $c9) (call $c9))
  (func $c9 (call $c10) (call $c10))
  (func $c10 (call $c11) (call $c11))
  (func $c11 (call $c12) (call $c12))
  (func $c12 (call $c13) (call $c13))
  (func $c13 (call $c14) (call $c14))
  (func $c14 (call $c15) (call $c15))
  (func $c15 (call $c16) (call $c16))
  (func $c16 (call $c17) (call $c17))
  (func $c17 (call $c18) (call $c18))
  (func $c18 (call $c19) (call $c19))
  (func $c19 (call $c20) (call $c20))
  (func $c20 (call $c21) (call $c21))
  (func $c21 (call $c22) (call $c22))
  (func $c22 (call $c23) (call $c23))
  (func $c23 (call $c24) (call $c24))
  (func $c24 (call $c25) (call $c25))
  (func $c25 (call $c26) (call $c26))
  (func $c26 (call $c27) (call $c27))
  (func $c27 (call $c28) (call $c28))
  (func $c28 (call $c29) (call $c29))
  (func $c29 (call $c30) (call $c30))
  (func $c30 (call $c31) (call $c31))
  (func $c31 (call $c32) (call $c32))
  (func $c32 (call $c33) (call $c33))
  (func $c33 (call $c34) (call $c34))
  (func $c34 (call $c35) (call $c35))
  (func $c35 (call $c36) (call $c36))
  (func $c36 (call $c37) (call $c37))
  (func $c37 (call $c38) (call $c38))
  (func $c38 (call $c39) (call $c39))
  (func $c39 (call $c40) (call $c40))
  (func $c40 (global.set $n (i32.add (global.get $n) (i32.const 1))))
  (func $grow_all
    (block $full
      (loop $more
        (br_if $full (i32.eq (memory.grow (i32.const 16)) (i32.const -1)))
        (br $more))))
  (func $deep_trap (unreachable))
  (func $sleep (param $ns i64)
    (memory.fill (i32.const 1024) (i32.const 0) (i32.const 48))
    (i32.store (i32.const 1040) (i32.const 1)) ;; monotonic
    (i64.store (i32.const 1048) (local.get $ns))
    (drop (call $poll (i32.const 1024) (i32.const 1088) (i32.const 1) (i32.const 1120))))

  (func $is (param $what i32) (result i32)
    (i32.eq (i32.load8_u (i32.const 0)) (local.get $what)))

  (func (export "handle") (result i64)
    (drop (call $payload_read (i32.const 0) (i32.const 16) (i32.const 0)))
    ;; R: return the eight bytes that follow
    (if (call $is (i32.const 82)) (then (return (i64.load (i32.const 1)))))
    ;; u: unreachable
    (if (call $is (i32.const 117)) (then (call $deep_trap)))
    ;; o: out of bounds
    (if (call $is (i32.const 111)) (then (drop (i32.load (i32.const 0x7fffff00)))))
    ;; d: division by zero
    (if (call $is (i32.const 100)) (then (drop (i32.div_s (i32.const 1) (i32.load (i32.const 2048))))))
    ;; n: null table entry
    (if (call $is (i32.const 110)) (then (call_indirect (type $void) (i32.const 0))))
    ;; l: endless loop
    (if (call $is (i32.const 108)) (then (loop $l (br $l))))
    ;; f: recursion that takes for ever
    (if (call $is (i32.const 102)) (then (drop (call $fib (i32.const 60)))))
    ;; c: calls without loop or recursion that take for ever
    (if (call $is (i32.const 99)) (then (call $c0)))
    ;; r: recursion without end
    (if (call $is (i32.const 114)) (then (drop (call $recurse (i32.const 0)))))
    ;; g: memory to the limit, then fine; G: then a trap; X: then proc_exit; L: then a loop
    (if (call $is (i32.const 103)) (then (call $grow_all) (return (i64.const 0))))
    (if (call $is (i32.const 71)) (then (call $grow_all) (unreachable)))
    (if (call $is (i32.const 88)) (then (call $grow_all) (call $exit (i32.const 1))))
    (if (call $is (i32.const 76)) (then (call $grow_all) (loop $l (br $l))))
    ;; e: proc_exit with the four bytes that follow
    (if (call $is (i32.const 101)) (then (call $exit (i32.load (i32.const 1)))))
    ;; s: sleep for an hour
    (if (call $is (i32.const 115)) (then (call $sleep (i64.const 3600000000000))))
    ;; S: short sleeps without end
    (if (call $is (i32.const 83)) (then (loop $l (call $sleep (i64.const 1000000)) (br $l))))
    ;; w: writes results until one is refused, and returns the refusal as retry-after
    (if (call $is (i32.const 119))
      (then (loop $l (br_if $l (i32.eqz (call $result_write (i32.const 0) (i32.const 65536)))))
            (return (i64.const 0))))
    ;; p: logs without end
    (if (call $is (i32.const 112)) (then (loop $l (call $log_write (i32.const 0) (i32.const 256) (i32.const 15)) (br $l))))
    ;; P: writes to stderr without end
    (if (call $is (i32.const 80)) (then
      (i32.store (i32.const 1024) (i32.const 512)) (i32.store (i32.const 1028) (i32.const 31))
      (loop $l (drop (call $fd_write (i32.const 2) (i32.const 1024) (i32.const 1) (i32.const 1120))) (br $l))))
    ;; E: an error text, then a trap
    (if (call $is (i32.const 69)) (then
      (drop (call $error_write (i32.const 256) (i32.const 15))) (unreachable)))
    ;; T: an error text, then a retry
    (if (call $is (i32.const 84)) (then
      (drop (call $error_write (i32.const 256) (i32.const 15))) (return (i64.const 1))))
    ;; k: a panic on stderr, then a trap
    (if (call $is (i32.const 107)) (then
      (i32.store (i32.const 1024) (i32.const 512)) (i32.store (i32.const 1028) (i32.const 31))
      (drop (call $fd_write (i32.const 2) (i32.const 1024) (i32.const 1) (i32.const 1120))) (unreachable)))
    ;; m: fills 64 MiB again and again
    (if (call $is (i32.const 109)) (then
      (drop (memory.grow (i32.const 900)))
      (loop $l (memory.fill (i32.const 4096) (i32.const 1) (i32.const 58720256)) (br $l))))
    ;; t: a table of four thousand million elements, and again and again
    (if (call $is (i32.const 116)) (then
      (loop $l (drop (table.grow $t (ref.null func) (i32.const 0xfffffff0)))
               (drop (table.grow $t (ref.null func) (i32.const 100000))) (br $l))))
    ;; q: random numbers, 56 MiB at a time
    (if (call $is (i32.const 113)) (then
      (drop (memory.grow (i32.const 900)))
      (loop $l (drop (call $random (i32.const 4096) (i32.const 58720256))) (br $l))))
    ;; i: a read of the payload into 56 MiB, again and again
    (if (call $is (i32.const 105)) (then
      (drop (memory.grow (i32.const 900)))
      (loop $l (drop (call $payload_read (i32.const 4096) (i32.const 58720256) (i32.const 0))) (br $l))))
    ;; h: a host call with a range outside memory
    (if (call $is (i32.const 104)) (then (drop (call $result_write (i32.const 0x7fffff00) (i32.const 100)))))
    ;; b: a descriptor number that would need 16 GiB
    (if (call $is (i32.const 98)) (then
      (return (i64.extend_i32_u (i32.ne (call $renumber (i32.const 1) (i32.const 0x7fffffff)) (i32.const 8))))))
    ;; v: as many buffers as fit into memory
    (if (call $is (i32.const 118)) (then
      (loop $l (drop (call $fd_write (i32.const 2) (i32.const 4096) (i32.const 8000) (i32.const 1120))) (br $l))))
    ;; z: waits until nothing remains, then success
    (if (call $is (i32.const 122)) (then
      (loop $l (call $sleep (i64.const 1000000)) (br_if $l (i64.gt_s (call $remaining) (i64.const 0))))))
    (i64.const 0)))
