;; A handler that cannot be started.
(module
  (memory (export "memory") 1)
  (func (export "_initialize") unreachable)
  (func (export "handle") (result i64) (i64.const 0)))
