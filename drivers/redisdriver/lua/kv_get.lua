-- ARGV 1 key. Returns the value, or nil.
if not live(ARGV[1]) then return false end
return redis.call('HGET', values, ARGV[1])
