;; A command. The first byte of stdin chooses: x exits with the four bytes that follow,
;; c copies the rest to stdout, o writes to stdout without end, u traps, l loops,
;; E writes the environment, one NUL-ended variable after the other, A argv[0];
;; g grows memory to the limit and exits with the byte that follows.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (memory (export "memory") 4)
  (func $write (param $fd i32) (param $at i32) (param $n i32)
    (i32.store (i32.const 16) (local.get $at))
    (i32.store (i32.const 20) (local.get $n))
    (drop (call $fd_write (local.get $fd) (i32.const 16) (i32.const 1) (i32.const 24))))
  (func $read (param $at i32) (param $n i32) (result i32)
    (i32.store (i32.const 16) (local.get $at))
    (i32.store (i32.const 20) (local.get $n))
    (drop (call $fd_read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 24)))
    (i32.load (i32.const 24)))
  (func $is (param $what i32) (result i32)
    (i32.eq (i32.load8_u (i32.const 64)) (local.get $what)))
  (func (export "_start") (local $n i32)
    (drop (call $read (i32.const 64) (i32.const 1)))
    (if (call $is (i32.const 120)) (then
      (drop (call $read (i32.const 128) (i32.const 4)))
      (call $exit (i32.load (i32.const 128)))))
    (if (call $is (i32.const 99)) (then
      (block $end (loop $more
        (local.set $n (call $read (i32.const 128) (i32.const 50)))
        (br_if $end (i32.eqz (local.get $n)))
        (call $write (i32.const 1) (i32.const 128) (local.get $n))
        (br $more)))))
    (if (call $is (i32.const 111)) (then (loop $l (call $write (i32.const 1) (i32.const 1024) (i32.const 65536)) (br $l))))
    (if (call $is (i32.const 117)) (then (unreachable)))
    (if (call $is (i32.const 108)) (then (loop $l (br $l))))
    (if (call $is (i32.const 69)) (then
      (drop (call $environ_sizes_get (i32.const 32) (i32.const 36)))
      (drop (call $environ_get (i32.const 1024) (i32.const 8192)))
      (call $write (i32.const 1) (i32.const 8192) (i32.load (i32.const 36)))))
    (if (call $is (i32.const 65)) (then
      (drop (call $args_sizes_get (i32.const 32) (i32.const 36)))
      (drop (call $args_get (i32.const 1024) (i32.const 8192)))
      (call $write (i32.const 1) (i32.const 8192) (i32.load (i32.const 36)))))
    (if (call $is (i32.const 103)) (then
      (drop (call $read (i32.const 128) (i32.const 1)))
      (loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
      (call $exit (i32.load8_u (i32.const 128)))))
    ;; e: the rest to stderr, then exit(2) as a crashed Go program does
    (if (call $is (i32.const 101)) (then
      (local.set $n (call $read (i32.const 128) (i32.const 60000)))
      (call $write (i32.const 2) (i32.const 128) (local.get $n))
      (call $exit (i32.const 2))))))
