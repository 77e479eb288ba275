;; wat2wasm --debug-names
;; What the benchmarks run: the tightest loops of their kinds, and recursion.
(module
  (memory 1)
  (table 2 funcref)
  (elem (i32.const 0) $small $small)
  (func (export "empty") (param i32)
    loop local.get 0 i32.const 1 i32.sub local.tee 0 br_if 0 end)
  ;; Sums the memory's 64 KiB byte by byte.
  (func (export "sum") (param i32) (result i32) (local i32 i32)
    loop
      local.get 2 local.get 1 i32.load8_u i32.add local.set 2
      local.get 1 local.get 0 i32.add local.tee 1
      i32.const 65536 i32.lt_u br_if 0
    end
    local.get 2)
  ;; The same as a compiler writes it that tests at the top.
  (func (export "while") (param i32) (result i32) (local i32 i32)
    block $out
      loop $top
        local.get 1 i32.const 65536 i32.ge_u br_if $out
        local.get 2 local.get 1 i32.load8_u i32.add local.set 2
        local.get 1 local.get 0 i32.add local.set 1
        br $top
      end
    end
    local.get 2)
  (func (export "store") (param i32) (local i32)
    loop
      local.get 0 i32.const 65532 i32.and local.tee 1
      local.get 1 i32.load local.get 0 i32.add i32.store
      local.get 0 i32.const 1 i32.sub local.tee 0 br_if 0
    end)
  (func $small (param i32) (result i32) local.get 0 i32.const 1 i32.sub)
  (func (export "calls") (param i32)
    loop local.get 0 call $small local.tee 0 br_if 0 end)
  (func (export "indirect") (param i32)
    loop
      local.get 0 local.get 0 i32.const 1 i32.and call_indirect (param i32) (result i32)
      local.tee 0 br_if 0
    end)
  (func $fib (export "fib") (param i32) (result i32)
    local.get 0 i32.const 2 i32.lt_u if local.get 0 return end
    local.get 0 i32.const 1 i32.sub call $fib
    local.get 0 i32.const 2 i32.sub call $fib
    i32.add))
