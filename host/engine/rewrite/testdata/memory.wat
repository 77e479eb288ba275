;; wat2wasm --debug-names
;; Loads and stores of every width, bulk operations, data segments, SIMD.
(module
  (memory (export "memory") 1 3)
  (data (i32.const 16) "hello, guest")
  (data $p "passive bytes")
  (func (export "bulk") (param i32) (result i32)
    i32.const 1000 i32.const 2 i32.const 8 memory.init $p
    i32.const 2000 i32.const 16 i32.const 12 memory.copy
    i32.const 3000 local.get 0 i32.const 64 memory.fill
    i32.const 1000 i32.load i32.const 2004 i32.load i32.xor i32.const 3001 i32.load i32.add)
  (func (export "drop") data.drop $p)
  (func (export "grow") (param i32) (result i32)
    local.get 0 i32.const 1 i32.and memory.grow memory.size i32.const 8 i32.shl i32.add)
  (func (export "widths") (param i32 i64) (result i64)
    local.get 0 i32.const 32767 i32.and local.set 0
    local.get 0 local.get 1 i64.store offset=64
    local.get 0 local.get 1 i64.store32 offset=80 align=2
    local.get 0 local.get 1 i64.store16 offset=90 align=1
    local.get 0 local.get 1 i64.store8 offset=99
    local.get 0 i64.load8_s offset=64 local.get 0 i64.load16_u offset=65 i64.add
    local.get 0 i64.load32_s offset=80 i64.xor
    local.get 0 i32.load8_u offset=99 i64.extend_i32_s i64.extend8_s i64.add
    local.get 0 f32.load offset=64 i32.trunc_sat_f32_s i64.extend_i32_u i64.add
    local.get 0 f64.load offset=64 i64.trunc_sat_f64_u i64.xor)
  (func (export "simd") (param i32 i64) (result i64) (local v128 i32)
    local.get 1 i64x2.splat local.set 2
    i32.const 20 local.set 3
    loop
      local.get 2 v128.const i32x4 1 -2 3 0x7fffffff i32x4.add
      local.get 2 i8x16.shuffle 0 17 2 19 4 21 6 23 8 25 10 27 12 29 14 31
      local.get 0 i32x4.splat i32x4.min_u
      i32.const 256 v128.load8x8_s i16x8.mul
      i32.const 16 v128.load8_splat i8x16.swizzle
      i32.const 16 local.get 2 v128.load16_lane 3 v128.xor
      i32.const 512 v128.load64_zero v128.or
      local.tee 2
      i32.const 4096 local.get 2 v128.store
      i32.const 4120 local.get 2 v128.store32_lane 2
      i32x4.extract_lane 1 drop
      local.get 2 local.get 0 i16x8.replace_lane 5 i8x16.popcnt
      local.get 2 i64x2.extmul_low_i32x4_s local.get 2 f64x2.max local.set 2
      local.get 3 i32.const 1 i32.sub local.tee 3 br_if 0
    end
    local.get 2 i64x2.extract_lane 0 local.get 2 i64x2.extract_lane 1 i64.add
    local.get 2 i8x16.bitmask local.get 2 v128.any_true i32.add i64.extend_i32_u i64.xor))
