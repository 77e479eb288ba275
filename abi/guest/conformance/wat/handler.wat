;; The conformance handler in plain WAT: README.md one folder up says what it does. There is no
;; SDK: handler.wat in ../../wat is the reference. Here is every import in use.
(module
  (import "guesthand_v1" "payload_read" (func $payload_read (param $dst i32) (param $len i32) (param $offset i32) (result i32)))
  (import "guesthand_v1" "attribute_read"
    (func $attribute_read (param $name i32) (param $name_len i32) (param $dst i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "result_write" (func $result_write (param $ptr i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "error_write" (func $error_write (param $ptr i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "log_write" (func $log_write (param $level i32) (param $ptr i32) (param $len i32)))
  (import "guesthand_v1" "remaining" (func $remaining (result i64)))
  (import "guesthand_v1" "state_read" (func $state_read (param $dst i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "state_write" (func $state_write (param $ptr i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "http_send"
    (func $http_send (param $head i32) (param $head_len i32) (param $body i32) (param $body_len i32) (result i32)))
  (import "guesthand_v1" "http_header_read"
    (func $http_header_read (param $name i32) (param $name_len i32) (param $dst i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "http_body_read" (func $http_body_read (param $dst i32) (param $len i32) (param $offset i32) (result i32)))
  (import "guesthand_v1" "kv_get" (func $kv_get (param $key i32) (param $key_len i32) (param $dst i32) (param $len i32) (result i32)))
  (import "guesthand_v1" "kv_put"
    (func $kv_put (param $key i32) (param $key_len i32) (param $val i32) (param $val_len i32) (param $ttl i64) (result i32)))
  (import "guesthand_v1" "kv_create"
    (func $kv_create (param $key i32) (param $key_len i32) (param $val i32) (param $val_len i32) (param $ttl i64) (result i32)))
  (import "guesthand_v1" "kv_delete" (func $kv_delete (param $key i32) (param $key_len i32) (result i32)))
  (import "guesthand_v1" "message_send"
    (func $message_send (param $head i32) (param $head_len i32) (param $body i32) (param $body_len i32) (result i32)))

  ;; From 64 texts that end with a zero, at $buf 64 KiB of scratch, at $payload up to 2 MiB.
  (memory (export "memory") 36)
  (global $buf i32 (i32.const 0x10000))
  (global $payload i32 (i32.const 0x20000))
  (global $payload_max i32 (i32.const 0x200000))
  (global $rest (mut i32) (i32.const 0))  ;; what of the payload was not taken yet
  (global $end (mut i32) (i32.const 0))   ;; of the payload

  (global $write_the_result_too_large i32 (i32.const 64)) (data (i32.const 64) "write the result: too large\00")
  (global $absent i32 (i32.const 92)) (data (i32.const 92) "absent\00")
  (global $not_granted i32 (i32.const 99)) (data (i32.const 99) "not granted\00")
  (global $too_large i32 (i32.const 111)) (data (i32.const 111) "too large\00")
  (global $not_available i32 (i32.const 121)) (data (i32.const 121) "not available\00")
  (global $malformed i32 (i32.const 135)) (data (i32.const 135) "malformed\00")
  (global $timed_out i32 (i32.const 145)) (data (i32.const 145) "timed out\00")
  (global $empty i32 (i32.const 155)) (data (i32.const 155) "empty\00")
  (global $echo i32 (i32.const 161)) (data (i32.const 161) "echo\00")
  (global $sum i32 (i32.const 166)) (data (i32.const 166) "sum\00")
  (global $fail i32 (i32.const 170)) (data (i32.const 170) "fail\00")
  (global $attributes i32 (i32.const 175)) (data (i32.const 175) "attributes\00")
  (global $result i32 (i32.const 186)) (data (i32.const 186) "result\00")
  (global $one i32 (i32.const 193)) (data (i32.const 193) "one\00")
  (global $two i32 (i32.const 197)) (data (i32.const 197) "two\00")
  (global $big i32 (i32.const 201)) (data (i32.const 201) "big\00")
  (global $log i32 (i32.const 205)) (data (i32.const 205) "log\00")
  (global $remaining i32 (i32.const 209)) (data (i32.const 209) "remaining\00")
  (global $state i32 (i32.const 219)) (data (i32.const 219) "state\00")
  (global $state_big i32 (i32.const 225)) (data (i32.const 225) "state-big\00")
  (global $http i32 (i32.const 235)) (data (i32.const 235) "http\00")
  (global $kv i32 (i32.const 240)) (data (i32.const 240) "kv\00")
  (global $send i32 (i32.const 243)) (data (i32.const 243) "send\00")
  (global $retry_after i32 (i32.const 248)) (data (i32.const 248) "retry-after\00")
  (global $delay i32 (i32.const 260)) (data (i32.const 260) "delay\00")
  (global $permanent i32 (i32.const 266)) (data (i32.const 266) "permanent\00")
  (global $reject i32 (i32.const 276)) (data (i32.const 276) "reject\00")
  (global $pause i32 (i32.const 283)) (data (i32.const 283) "pause\00")
  (global $x i32 (i32.const 289)) (data (i32.const 289) "=\00")
  (global $x_29 i32 (i32.const 291)) (data (i32.const 291) "\n\00")
  (global $id i32 (i32.const 293)) (data (i32.const 293) "id\00")
  (global $job i32 (i32.const 296)) (data (i32.const 296) "job\00")
  (global $queue i32 (i32.const 300)) (data (i32.const 300) "queue\00")
  (global $attempt i32 (i32.const 306)) (data (i32.const 306) "attempt\00")
  (global $failures i32 (i32.const 314)) (data (i32.const 314) "failures\00")
  (global $delays i32 (i32.const 323)) (data (i32.const 323) "delays\00")
  (global $stalls i32 (i32.const 330)) (data (i32.const 330) "stalls\00")
  (global $interruptions i32 (i32.const 337)) (data (i32.const 337) "interruptions\00")
  (global $max_attempts i32 (i32.const 351)) (data (i32.const 351) "max_attempts\00")
  (global $enqueued_at i32 (i32.const 364)) (data (i32.const 364) "enqueued_at\00")
  (global $deadline i32 (i32.const 376)) (data (i32.const 376) "deadline\00")
  (global $deadline_later i32 (i32.const 385)) (data (i32.const 385) "deadline=later\n\00")
  (global $deadline_none i32 (i32.const 401)) (data (i32.const 401) "deadline=none\n\00")
  (global $headers i32 (i32.const 416)) (data (i32.const 416) "headers\00")
  (global $header i32 (i32.const 424)) (data (i32.const 424) "header\00")
  (global $header_x_tag i32 (i32.const 431)) (data (i32.const 431) "header.x-tag\00")
  (global $config i32 (i32.const 444)) (data (i32.const 444) "config\00")
  (global $config_color i32 (i32.const 451)) (data (i32.const 451) "config.color\00")
  (global $secret i32 (i32.const 464)) (data (i32.const 464) "secret\00")
  (global $secret_key i32 (i32.const 471)) (data (i32.const 471) "secret.key\00")
  (global $section i32 (i32.const 482)) (data (i32.const 482) "section\00")
  (global $section_conformance i32 (i32.const 490)) (data (i32.const 490) "section.conformance\00")
  (global $traceparent i32 (i32.const 510)) (data (i32.const 510) "traceparent\00")
  (global $config_none i32 (i32.const 522)) (data (i32.const 522) "config.none\00")
  (global $none_absent i32 (i32.const 534)) (data (i32.const 534) "none=absent\n\00")
  (global $none_present i32 (i32.const 547)) (data (i32.const 547) "none=present\n\00")
  (global $debug i32 (i32.const 561)) (data (i32.const 561) "debug\00")
  (global $info i32 (i32.const 567)) (data (i32.const 567) "info\00")
  (global $warn i32 (i32.const 572)) (data (i32.const 572) "warn\00")
  (global $error i32 (i32.const 577)) (data (i32.const 577) "error\00")
  (global $write_the_state_too_large i32 (i32.const 583)) (data (i32.const 583) "write the state: too large\00")
  (global $get i32 (i32.const 610)) (data (i32.const 610) "GET \00")
  (global $x_62 i32 (i32.const 615)) (data (i32.const 615) ": \00")
  (global $x_63 i32 (i32.const 618)) (data (i32.const 618) " \00")
  (global $x_test i32 (i32.const 620)) (data (i32.const 620) "X-Test\00")
  (global $the_server_answered i32 (i32.const 627)) (data (i32.const 627) "the server answered \00")
  (global $retry_after_66 i32 (i32.const 648)) (data (i32.const 648) "Retry-After\00")
  (global $x_67 i32 (i32.const 660)) (data (i32.const 660) ",\00")
  (global $k i32 (i32.const 662)) (data (i32.const 662) "k\00")
  (global $1 i32 (i32.const 664)) (data (i32.const 664) "1\00")
  (global $created i32 (i32.const 666)) (data (i32.const 666) "created\00")
  (global $exists i32 (i32.const 674)) (data (i32.const 674) "exists\00")
  (global $2 i32 (i32.const 681)) (data (i32.const 681) "2\00")
  (global $3 i32 (i32.const 683)) (data (i32.const 683) "3\00")
  (global $ok i32 (i32.const 685)) (data (i32.const 685) "ok\00")
  (global $next_conform_key_k1_delay_30s_x_test_yes i32 (i32.const 688)) (data (i32.const 688) "next conform\nKey: k1\nDelay: 30s\nX-Test: yes\00")
  (global $hello i32 (i32.const 732)) (data (i32.const 732) "hello\00")
  (global $panic i32 (i32.const 738)) (data (i32.const 738) "panic\00")
  (global $boom i32 (i32.const 744)) (data (i32.const 744) "boom\00")
  (global $bounds i32 (i32.const 749)) (data (i32.const 749) "bounds\00")
  (global $trap i32 (i32.const 756)) (data (i32.const 756) "trap\00")
  (global $loop i32 (i32.const 761)) (data (i32.const 761) "loop\00")
  (global $grow i32 (i32.const 766)) (data (i32.const 766) "grow\00")
  (global $unknown_operation i32 (i32.const 771)) (data (i32.const 771) "unknown operation \00")

  ;; ---- Texts end with a zero.

  (func $len (param $s i32) (result i32)
    (local $p i32)
    (local.set $p (local.get $s))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (i32.load8_u (local.get $p))))
        (local.set $p (i32.add (local.get $p) (i32.const 1)))
        (br $next)))
    (i32.sub (local.get $p) (local.get $s)))

  (func $is (param $a i32) (param $b i32) (result i32)
    (local $c i32)
    (loop $next
      (local.set $c (i32.load8_u (local.get $a)))
      (if (i32.ne (local.get $c) (i32.load8_u (local.get $b))) (then (return (i32.const 0))))
      (local.set $a (i32.add (local.get $a) (i32.const 1)))
      (local.set $b (i32.add (local.get $b) (i32.const 1)))
      (br_if $next (local.get $c)))
    (i32.const 1))

  ;; Copies a text and returns where it ends in dst.
  (func $add (param $dst i32) (param $s i32) (result i32)
    (memory.copy (local.get $dst) (local.get $s) (i32.add (call $len (local.get $s)) (i32.const 1)))
    (i32.add (local.get $dst) (call $len (local.get $s))))

  (func $number (param $s i32) (result i64)
    (local $n i64) (local $c i32)
    (block $done
      (loop $next
        (local.set $c (i32.sub (i32.load8_u (local.get $s)) (i32.const 48)))
        (br_if $done (i32.gt_u (local.get $c) (i32.const 9)))
        (local.set $n (i64.add (i64.mul (local.get $n) (i64.const 10)) (i64.extend_i32_u (local.get $c))))
        (local.set $s (i32.add (local.get $s) (i32.const 1)))
        (br $next)))
    (local.get $n))

  ;; Cuts the next line off the payload.
  (func $line (result i32)
    (local $start i32) (local $p i32)
    (local.set $start (global.get $rest))
    (local.set $p (global.get $rest))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $p) (global.get $end)))
        (if (i32.eq (i32.load8_u (local.get $p)) (i32.const 10))
          (then
            (i32.store8 (local.get $p) (i32.const 0))
            (global.set $rest (i32.add (local.get $p) (i32.const 1)))
            (return (local.get $start))))
        (local.set $p (i32.add (local.get $p) (i32.const 1)))
        (br $next)))
    (global.set $rest (local.get $p))
    (local.get $start))

  ;; ---- What the host gets

  (func $error (param $s i32) (drop (call $error_write (local.get $s) (call $len (local.get $s)))))

  ;; Appends to the result and returns the outcome.
  (func $write (param $ptr i32) (param $len i32) (result i64)
    (if (i32.eqz (call $result_write (local.get $ptr) (local.get $len))) (then (return (i64.const 0))))
    (call $error (global.get $write_the_result_too_large))
    (i64.const 1))

  (func $say (param $s i32) (result i64) (call $write (local.get $s) (call $len (local.get $s))))

  (func $say_number (param $n i64) (result i64)
    (local $p i32)
    (local.set $p (i32.const 63))
    (i32.store8 (i32.const 63) (i32.const 0))
    (loop $next
      (local.set $p (i32.sub (local.get $p) (i32.const 1)))
      (i32.store8 (local.get $p) (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $n) (i64.const 10)))))
      (local.set $n (i64.div_u (local.get $n) (i64.const 10)))
      (br_if $next (i64.ne (local.get $n) (i64.const 0))))
    (call $say (local.get $p)))

  ;; The word for an answer below 0, else zero or one.
  (func $answer (param $n i32) (param $zero i32) (param $one i32) (result i32)
    (if (i32.eqz (local.get $n)) (then (return (local.get $zero))))
    (if (i32.gt_s (local.get $n) (i32.const 0)) (then (return (local.get $one))))
    (block $timed_out (block $malformed (block $unavailable (block $too_large (block $not_granted (block $absent
      (br_table $absent $not_granted $too_large $unavailable $malformed $timed_out (i32.sub (i32.const -1) (local.get $n))))
      (return (global.get $absent)))
      (return (global.get $not_granted)))
      (return (global.get $too_large)))
      (return (global.get $not_available)))
      (return (global.get $malformed)))
    (global.get $timed_out))

  ;; ---- The operations

  (func (export "handle") (result i64)
    (local $n i32) (local $op i32)
    (local.set $n (call $payload_read (global.get $payload) (global.get $payload_max) (i32.const 0)))
    (if (i32.eqz (local.get $n)) (then (return (call $say (global.get $empty)))))
    (global.set $rest (global.get $payload))
    (global.set $end (i32.add (global.get $payload) (local.get $n)))
    (i32.store8 (global.get $end) (i32.const 0))
    (local.set $op (call $line))
    (if (call $is (local.get $op) (global.get $echo))
      (then (return (call $write (global.get $rest) (i32.sub (global.get $end) (global.get $rest))))))
    (if (call $is (local.get $op) (global.get $sum)) (then (return (call $sum))))
    (if (call $is (local.get $op) (global.get $fail)) (then (return (call $fail (call $line) (call $number (call $line)) (call $line)))))
    (if (call $is (local.get $op) (global.get $attributes)) (then (return (call $attributes))))
    (if (call $is (local.get $op) (global.get $result)) (then (return (i64.or (call $say (global.get $one)) (call $say (global.get $two))))))
    (if (call $is (local.get $op) (global.get $big)) (then (return (call $big (i32.wrap_i64 (call $number (call $line)))))))
    (if (call $is (local.get $op) (global.get $log)) (then (return (call $log))))
    (if (call $is (local.get $op) (global.get $remaining)) (then (return (call $say_number (call $remaining)))))
    (if (call $is (local.get $op) (global.get $state)) (then (return (call $state))))
    (if (call $is (local.get $op) (global.get $state_big)) (then (return (call $set_state (i32.const 4097)))))
    (if (call $is (local.get $op) (global.get $http)) (then (return (call $http (call $line)))))
    (if (call $is (local.get $op) (global.get $kv)) (then (return (call $kv))))
    (if (call $is (local.get $op) (global.get $send)) (then (return (call $send))))
    (call $crash (local.get $op)))

  (func $sum (result i64)
    (local $n i32) (local $p i32)
    (local.set $p (global.get $rest))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $p) (global.get $end)))
        (local.set $n (i32.add (local.get $n) (i32.load8_u (local.get $p))))
        (local.set $p (i32.add (local.get $p) (i32.const 1)))
        (br $next)))
    (call $say_number (i64.extend_i32_u (local.get $n))))

  (func $fail (param $kind i32) (param $ms i64) (param $text i32) (result i64)
    (if (i32.load8_u (local.get $text)) (then (call $error (local.get $text))))
    (i64.or (i64.shl (local.get $ms) (i64.const 8)) (call $code (local.get $kind))))

  (func $code (param $kind i32) (result i64)
    (if (call $is (local.get $kind) (global.get $retry_after)) (then (return (i64.const 10))))
    (if (call $is (local.get $kind) (global.get $delay)) (then (return (i64.const 11))))
    (if (call $is (local.get $kind) (global.get $permanent)) (then (return (i64.const 12))))
    (if (call $is (local.get $kind) (global.get $reject)) (then (return (i64.const 13))))
    (if (call $is (local.get $kind) (global.get $pause)) (then (return (i64.const 14))))
    (i64.const 1))

  ;; Reads an attribute into $buf as a text; empty where it is absent.
  (func $attribute (param $name i32) (result i32)
    (local $n i32)
    (local.set $n (call $attribute_read (local.get $name) (call $len (local.get $name)) (global.get $buf) (i32.const 4095)))
    (i32.store8
      (i32.add (global.get $buf) (select (local.get $n) (i32.const 0) (i32.gt_s (local.get $n) (i32.const 0))))
      (i32.const 0))
    (local.get $n))

  (func $say_attribute (param $label i32) (param $name i32)
    (local $p i32)
    (drop (call $attribute (local.get $name)))
    (local.set $p (global.get $buf))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (i32.load8_u (local.get $p))))
        (if (i32.eq (i32.load8_u (local.get $p)) (i32.const 10)) (then (i32.store8 (local.get $p) (i32.const 44))))
        (local.set $p (i32.add (local.get $p) (i32.const 1)))
        (br $next)))
    (drop (call $say (local.get $label)))
    (drop (call $say (global.get $x)))
    (drop (call $say (global.get $buf)))
    (drop (call $say (global.get $x_29))))

  (func $time (param $name i32) (result i64)
    (drop (call $attribute (local.get $name)))
    (call $number (global.get $buf)))

  (func $attributes (result i64)
    (call $say_attribute (global.get $id) (global.get $id))
    (call $say_attribute (global.get $job) (global.get $job))
    (call $say_attribute (global.get $queue) (global.get $queue))
    (call $say_attribute (global.get $attempt) (global.get $attempt))
    (call $say_attribute (global.get $failures) (global.get $failures))
    (call $say_attribute (global.get $delays) (global.get $delays))
    (call $say_attribute (global.get $stalls) (global.get $stalls))
    (call $say_attribute (global.get $interruptions) (global.get $interruptions))
    (call $say_attribute (global.get $max_attempts) (global.get $max_attempts))
    (call $say_attribute (global.get $enqueued_at) (global.get $enqueued_at))
    (if (i64.gt_u (call $time (global.get $deadline)) (call $time (global.get $enqueued_at)))
      (then (drop (call $say (global.get $deadline_later))))
      (else (drop (call $say (global.get $deadline_none)))))
    (call $say_attribute (global.get $headers) (global.get $headers))
    (call $say_attribute (global.get $header) (global.get $header_x_tag))
    (call $say_attribute (global.get $config) (global.get $config_color))
    (call $say_attribute (global.get $secret) (global.get $secret_key))
    (call $say_attribute (global.get $section) (global.get $section_conformance))
    (call $say_attribute (global.get $traceparent) (global.get $traceparent))
    (if (i32.eq (call $attribute (global.get $config_none)) (i32.const -1))
      (then (return (call $say (global.get $none_absent)))))
    (call $say (global.get $none_present)))

  (func $big (param $n i32) (result i64)
    (local $some i32)
    (memory.fill (global.get $buf) (i32.const 120) (i32.const 0x10000))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $some (select (local.get $n) (i32.const 0x10000) (i32.lt_u (local.get $n) (i32.const 0x10000))))
        (if (i64.ne (call $write (global.get $buf) (local.get $some)) (i64.const 0)) (then (return (i64.const 1))))
        (local.set $n (i32.sub (local.get $n) (local.get $some)))
        (br $next)))
    (i64.const 0))

  (func $log (result i64)
    (call $log_write (i32.const -4) (global.get $debug) (i32.const 5))
    (call $log_write (i32.const 0) (global.get $info) (i32.const 4))
    (call $log_write (i32.const 4) (global.get $warn) (i32.const 4))
    (call $log_write (i32.const 8) (global.get $error) (i32.const 5))
    (i64.const 0))

  (func $state (result i64)
    (local $n i32) (local $failed i64)
    (local.set $n (call $state_read (global.get $buf) (i32.const 4096)))
    (i32.store8 (i32.add (global.get $buf) (local.get $n)) (i32.const 120))
    (local.set $failed (call $set_state (i32.add (local.get $n) (i32.const 1))))
    (if (i64.ne (local.get $failed) (i64.const 0)) (then (return (local.get $failed))))
    (i64.const 256011))                                ;; 1000 ms << 8 | delay

  (func $set_state (param $len i32) (result i64)
    (if (i32.eqz (call $state_write (global.get $buf) (local.get $len))) (then (return (i64.const 0))))
    (call $error (global.get $write_the_state_too_large))
    (i64.const 1))

  (func $http (param $url i32) (result i64)
    (local $end i32) (local $status i32)
    (local.set $end (call $add (call $add (global.get $buf) (global.get $get)) (local.get $url)))
    (local.set $status
      (call $http_send (global.get $buf) (i32.sub (local.get $end) (global.get $buf)) (i32.const 0) (i32.const 0)))
    (if (i32.lt_s (local.get $status) (i32.const 0))
      (then
        (drop (call $add (call $add (local.get $end) (global.get $x_62)) (call $answer (local.get $status) (i32.const 0) (i32.const 0))))
        (call $error (global.get $buf))
        (return (i64.const 1))))
    (if (i32.ge_u (local.get $status) (i32.const 400)) (then (return (call $bad_status (local.get $status)))))
    (drop (call $say_number (i64.extend_i32_u (local.get $status))))
    (drop (call $say (global.get $x_63)))
    (drop (call $write (global.get $buf) (call $header (global.get $x_test))))
    (drop (call $say (global.get $x_63)))
    (call $write (global.get $buf) (call $http_body_read (global.get $buf) (i32.const 0x10000) (i32.const 0))))

  ;; Reads a header of the response into $buf as a text and returns its size, 0 where it is absent.
  (func $header (param $name i32) (result i32)
    (local $n i32)
    (local.set $n (call $http_header_read (local.get $name) (call $len (local.get $name)) (global.get $buf) (i32.const 255)))
    (local.set $n (select (local.get $n) (i32.const 0) (i32.gt_s (local.get $n) (i32.const 0))))
    (i32.store8 (i32.add (global.get $buf) (local.get $n)) (i32.const 0))
    (local.get $n))

  ;; 429 and 503 with seconds in Retry-After are a retry-after.
  (func $bad_status (param $status i32) (result i64)
    (local $digits i32)
    (local.set $digits (call $add (global.get $buf) (global.get $the_server_answered)))
    (i32.store8 (local.get $digits) (i32.add (i32.const 48) (i32.div_u (local.get $status) (i32.const 100))))
    (i32.store8 offset=1 (local.get $digits)
      (i32.add (i32.const 48) (i32.rem_u (i32.div_u (local.get $status) (i32.const 10)) (i32.const 10))))
    (i32.store8 offset=2 (local.get $digits) (i32.add (i32.const 48) (i32.rem_u (local.get $status) (i32.const 10))))
    (i32.store8 offset=3 (local.get $digits) (i32.const 0))
    (call $error (global.get $buf))
    (if (i32.or (i32.eq (local.get $status) (i32.const 429)) (i32.eq (local.get $status) (i32.const 503)))
      (then
        (if (call $header (global.get $retry_after_66))
          (then
            (return
              (i64.or (i64.const 10)
                (i64.shl (i64.mul (call $number (global.get $buf)) (i64.const 1000)) (i64.const 8))))))))
    (i64.const 1))

  (func $say_answer (param $n i32) (param $zero i32) (param $one i32)
    (drop (call $say (call $answer (local.get $n) (local.get $zero) (local.get $one))))
    (drop (call $say (global.get $x_67))))

  (func $say_value
    (local $n i32)
    (local.set $n (call $kv_get (global.get $k) (i32.const 1) (global.get $buf) (i32.const 4096)))
    (i32.store8
      (i32.add (global.get $buf) (select (local.get $n) (i32.const 0) (i32.gt_s (local.get $n) (i32.const 0))))
      (i32.const 0))
    (call $say_answer (local.get $n) (global.get $buf) (global.get $buf)))

  (func $kv (result i64)
    (call $say_value)
    (call $say_answer (call $kv_create (global.get $k) (i32.const 1) (global.get $1) (i32.const 1) (i64.const 3600000)) (global.get $created) (global.get $exists))
    (call $say_answer (call $kv_create (global.get $k) (i32.const 1) (global.get $2) (i32.const 1) (i64.const 3600000)) (global.get $created) (global.get $exists))
    (call $say_value)
    (call $say_answer (call $kv_put (global.get $k) (i32.const 1) (global.get $3) (i32.const 1) (i64.const 0)) (global.get $ok) (global.get $ok))
    (call $say_value)
    (call $say_answer (call $kv_delete (global.get $k) (i32.const 1)) (global.get $ok) (global.get $ok))
    (call $say (call $answer (call $kv_delete (global.get $k) (i32.const 1)) (global.get $ok) (global.get $ok))))

  (func $send (result i64)
    (call $say
      (call $answer
        (call $message_send
          (global.get $next_conform_key_k1_delay_30s_x_test_yes) (call $len (global.get $next_conform_key_k1_delay_30s_x_test_yes))
          (global.get $hello) (i32.const 5))
        (global.get $ok) (global.get $ok))))

  (func $crash (param $op i32) (result i64)
    (if (call $is (local.get $op) (global.get $panic))
      (then
        (call $error (global.get $boom))
        (unreachable)))
    (if (call $is (local.get $op) (global.get $bounds)) (then (return (i64.load (i32.const -8)))))
    (if (call $is (local.get $op) (global.get $trap)) (then (unreachable)))
    (if (call $is (local.get $op) (global.get $loop)) (then (loop $for_ever (br $for_ever))))
    (if (call $is (local.get $op) (global.get $grow))
      (then
        (loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
        (unreachable)))
    (drop (call $add (call $add (global.get $buf) (global.get $unknown_operation)) (local.get $op)))
    (call $error (global.get $buf))
    (i64.const 12)))
