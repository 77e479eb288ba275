-- Returns messages as they came, uncounted, to where they were taken. ARGV from 2 on: id and
-- token of each, in the order they were handed out. Returns how many.
local n = 0
for i = #ARGV - 1, 2, -2 do
  local key = messages .. ARGV[i]
  if redis.call('HGET', key, 'lease') == ARGV[i + 1] then
    redis.call('HDEL', key, 'lease', 'noticed')
    redis.call('ZREM', leased, ARGV[i])
    redis.call('LPUSH', ready, ARGV[i])
    n = n + 1
  end
end
if n > 0 then wake() end
return n
