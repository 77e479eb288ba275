-- ARGV 1 key. Returns 1, or 0 where there was none.
local there = live(ARGV[1])
remove(ARGV[1])
return there and 1 or 0
