-- Finds messages that no set names any more, as after an eviction. ARGV 2 'look' or 'put', then
-- ids. Returns the ids that are orphans (look), or that were put back (put): what was in flight
-- as a stall, what was waiting uncounted. A long list of ready ones is not searched.
local put, out = ARGV[2] == 'put', {}
local listed = nil
if redis.call('LLEN', ready) <= 1000 then
  listed = {}
  for _, id in ipairs(redis.call('LRANGE', ready, 0, -1)) do listed[id] = true end
end
for i = 3, #ARGV do
  local id, key = ARGV[i], messages .. ARGV[i]
  local there = redis.call('EXISTS', key) == 1
  local lease = there and redis.call('HGET', key, 'lease')
  if lease and not redis.call('ZSCORE', leased, id) then
    out[#out + 1] = id
    if put then
      redis.call('HINCRBY', key, 'stalls', 1)
      redis.call('HSET', key, 'noticed', 1)
      redis.call('HDEL', key, 'lease')
      redis.call('LPUSH', ready, id)
    end
  elseif there and not lease and listed and not listed[id] and not redis.call('ZSCORE', delayed, id) then
    out[#out + 1] = id
    if put then redis.call('RPUSH', ready, id) end
  end
end
if put and #out > 0 then wake() end
return out
