(module (memory (export "memory") 1) (global (export "handle") i32 (i32.const 0)))
