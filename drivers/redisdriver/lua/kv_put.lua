-- ARGV 1 key, 2 value, 3 ttl ms or 0, 4 most keys or 0, 5 most bytes or 0, 6 '1' to create only.
-- Returns 1 stored, 0 there already, -1 over the quota. What has expired counts for nothing.
local key, value, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local maxkeys, maxbytes = tonumber(ARGV[4]), tonumber(ARGV[5])
purge(100)
local there = live(key)
if there and ARGV[6] == '1' then return 0 end
if not there then remove(key) end

local function fits()
  local keys = redis.call('HLEN', values) + (there and 0 or 1)
  local bytes = tonumber(redis.call('GET', size) or 0) + #value
  if there then bytes = bytes - redis.call('HSTRLEN', values, key) else bytes = bytes + #key end
  return (maxkeys <= 0 or keys <= maxkeys) and (maxbytes <= 0 or bytes <= maxbytes)
end
while not fits() do
  if purge(1000) == 0 then return -1 end
end
local grown = #value
if there then grown = grown - redis.call('HSTRLEN', values, key) else grown = grown + #key end
redis.call('HSET', values, key, value)
redis.call('INCRBY', size, grown)
if ttl > 0 then redis.call('ZADD', ends, now + ttl + 1, key) else redis.call('ZREM', ends, key) end
return 1
