;; wat2wasm --debug-names
;; Every kind of element segment, indirect calls, table instructions, a start function, and
;; function references in globals and instructions.
(module
  (type $i (func (param i32) (result i32)))
  (import "env" "twice" (func $twice (param i32) (result i32)))
  (import "env" "base" (global $base i32))
  (table $t (export "t") 16 24 funcref)
  (table $x 4 externref)
  (table $u 12 funcref)
  (global $ref (mut funcref) (ref.func $dec))
  (global $null externref (ref.null extern))
  (global $started (export "started") (mut i32) (i32.const 0))
  (elem (i32.const 0) $inc $dec)
  (elem (table $t) (i32.const 2) func $rec $twice)
  (elem (table $u) (i32.const 0) func $inc $rec)
  (elem $passive func $dec $inc)
  (elem declare func $only)
  (elem (table $t) (i32.const 4) funcref (ref.func $inc) (ref.null func))
  (elem (table $u) (i32.const 4) funcref (ref.func $dec))
  (elem $expr funcref (ref.func $rec) (ref.null func) (ref.func $dec))
  (elem declare funcref (ref.func $inc))
  (start $begin)
  (func $begin
    i32.const 41 call $inc global.set $started
    i32.const 10 i32.const 0 i32.const 2 table.init $t $passive
    i32.const 8 i32.const 0 i32.const 3 table.init $u $expr
    elem.drop $passive)
  (func $inc (type $i) local.get 0 i32.const 1 i32.add)
  (func $dec (type $i) local.get 0 i32.const 1 i32.sub)
  (func $only (type $i) local.get 0 i32.const 5 i32.mul)
  (func $rec (export "rec") (type $i)
    local.get 0 i32.const 63 i32.and local.tee 0
    i32.eqz if i32.const 7 return end
    local.get 0 i32.const 1 i32.sub i32.const 2 call_indirect $t (type $i)
    i32.const 3 i32.add)
  (func (export "call") (param i32 i32) (result i32)
    local.get 0 local.get 1 i32.const 15 i32.and call_indirect $t (type $i))
  (func (export "call_u") (param i32 i32) (result i32)
    local.get 0 local.get 1 i32.const 15 i32.and call_indirect $u (type $i))
  (func (export "ref") (param i32 i32) (result i32)
    i32.const 15 ref.func $only table.set $t
    i32.const 14 global.get $ref table.set $t
    i32.const 13 ref.func $self table.set $t
    local.get 0 local.get 1 i32.const 3 i32.and i32.const 12 i32.add call_indirect $t (type $i))
  ;; Only its export makes ref.func $self valid, and it is counted.
  (func $self (export "self") (type $i)
    local.get 0 i32.const 15 i32.and i32.const 1 i32.add call $rec)
  (func (export "grow") (param i32) (result i32)
    ref.func $inc local.get 0 i32.const 3 i32.and table.grow $t)
  (func (export "size") (result i32) table.size $t)
  (func (export "fill") (param i32) (result i32)
    local.get 0 i32.const 7 i32.and ref.func $dec i32.const 4 table.fill $t
    i32.const 0 i32.const 4 i32.const 2 table.copy $t $u
    local.get 0 i32.const 7 i32.and table.get $t ref.is_null)
  (func (export "isnull") (result i32) global.get $null ref.is_null)
  (func (export "select") (param i32 i32) (result i32)
    i32.const 9 ref.func $inc ref.func $dec local.get 0 select (result funcref) table.set $t
    local.get 1 i32.const 9 call_indirect $t (type $i))
  (func (export "twice") (param i32) (result i32) local.get 0 call $twice global.get $base i32.add)
  (export "again" (func $twice)))
