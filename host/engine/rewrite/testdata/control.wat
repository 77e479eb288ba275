;; wat2wasm --debug-names
;; Loops, branches, recursion, several results and parameters of blocks.
(module
  (global $g (export "g") (mut i64) (i64.const 3))
  (func $fib (export "fib") (param i32) (result i32)
    local.get 0 i32.const 31 i32.and i32.const 12 i32.rem_u call $fib2)
  (func $fib2 (param i32) (result i32)
    local.get 0 i32.const 2 i32.lt_u if local.get 0 return end
    local.get 0 i32.const 1 i32.sub call $fib2
    local.get 0 i32.const 2 i32.sub call $fib2
    i32.add)
  (func (export "sum") (param i32) (result i64) (local i64)
    local.get 0 i32.const 65535 i32.and local.set 0
    loop
      local.get 1 local.get 0 i64.extend_i32_u i64.add local.set 1
      local.get 0 i32.eqz if local.get 1 return end
      local.get 0 i32.const 1 i32.sub local.set 0
      br 0
    end
    unreachable)
  (func (export "nested") (param i32) (result i32) (local i32 i32 i32)
    local.get 0 i32.const 255 i32.and local.set 0
    block $out
      loop $a
        local.get 0 local.set 1
        loop $b
          local.get 3 local.get 1 i32.add local.set 3
          local.get 1 i32.const 77 i32.eq br_if $out
          local.get 1 i32.eqz if
            local.get 0 i32.eqz br_if $out
            local.get 0 i32.const 1 i32.sub local.set 0
            br $a
          end
          local.get 1 i32.const 1 i32.sub local.set 1
          br $b
        end
      end
    end
    local.get 3)
  (func (export "table") (param i32) (result i32) (local i32)
    loop $top
      block $two block $one block $zero
        local.get 0 i32.const 7 i32.and br_table $zero $one $two $top $zero
      end
        local.get 1 i32.const 100 i32.add return
      end
        local.get 1 i32.const 1 i32.add local.set 1
        local.get 0 i32.const 3 i32.shr_u local.set 0 br $top
      end
      local.get 1 i32.const 10 i32.add local.set 1
      local.get 0 i32.const 2 i32.shr_u local.set 0
      local.get 1 i32.const 1000 i32.lt_u br_if $top
    end
    local.get 1)
  ;; Two loops of 100 rounds around a call of a loop of 100 rounds.
  (func (export "cube") (param i32) (result i32) (local i32 i32)
    i32.const 100 local.set 1
    loop
      i32.const 100 local.set 2
      loop
        i32.const 100 call $down local.get 0 i32.add local.set 0
        local.get 2 i32.const 1 i32.sub local.tee 2 br_if 0
      end
      local.get 1 i32.const 1 i32.sub local.tee 1 br_if 0
    end
    local.get 0)
  (func $down (param i32) (result i32)
    loop local.get 0 i32.const 1 i32.sub local.tee 0 br_if 0 end
    local.get 0)
  (func $swap (param i32 i64) (result i64 i32) local.get 1 local.get 0)
  (func (export "params") (param i32 i64) (result i64 i32) (local i32)
    i32.const 50 local.set 2
    local.get 0 local.get 1
    loop (param i32 i64) (result i64 i32)
      call $swap
      i32.const 1 i32.add
      block (param i64 i32) (result i32 i64)
        local.set 0 local.set 1 local.get 0 local.get 1
      end
      local.get 2 i32.const 1 i32.sub local.tee 2
      br_if 0
      call $swap
    end)
  (func (export "carry") (param i32) (result i32)
    ;; A loop whose parameter is on the stack when it is entered.
    local.get 0 i32.const 1023 i32.and
    loop (param i32) (result i32)
      i32.const 1 i32.sub
      local.tee 0
      local.get 0 i32.const 0 i32.gt_s br_if 0
    end)
  (func (export "globals") (param i64) (result i64)
    global.get $g i64.const 31 i64.mul local.get 0 i64.add global.set $g
    global.get $g)
  (func (export "dead") (param i32) (result i32)
    block (result i32)
      local.get 0 br 0
      loop local.get 0 drop br 0 end
      unreachable
    end)
  (func (export "div") (param i32 i32) (result i32) local.get 0 local.get 1 i32.div_s))
