-- Put before the scripts of buckets. KEYS are the values (a hash), their ends (a sorted set,
-- Unix ms) and the bytes of keys and values together.
local values, ends, size = KEYS[1], KEYS[2], KEYS[3]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function remove(key)
  local bytes = #key + redis.call('HSTRLEN', values, key)
  if redis.call('HDEL', values, key) == 0 then return 0 end
  redis.call('ZREM', ends, key)
  if redis.call('DECRBY', size, bytes) <= 0 then redis.call('DEL', size) end
  return 1
end

-- purge removes values whose time is over, the oldest first.
local function purge(most)
  local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, most)
  for _, key in ipairs(over) do remove(key) end
  return #over
end

local function live(key)
  local till = redis.call('ZSCORE', ends, key)
  return (not till or tonumber(till) > now) and redis.call('HEXISTS', values, key) == 1
end
