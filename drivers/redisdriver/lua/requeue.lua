-- Puts messages back with a new carry. ARGV 2 longest delay ms or 0, then for each: id, token,
-- delay ms (0: at once), stalls, carry, state. Returns 1 where that was done (also by an
-- earlier call with this token), 0 where the lease is another's, -1 where there is no message.
local longest, out, woken = tonumber(ARGV[2]), {}, false
for i = 3, #ARGV, 6 do
  local id, token, delay = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local key = messages .. id
  local f = redis.call('HMGET', key, 'lease', 'settled')
  if f[1] == token then
    redis.call('HSET', key, 'settled', token, 'stalls', ARGV[i + 3], 'carry', ARGV[i + 4], 'state', ARGV[i + 5])
    redis.call('HDEL', key, 'lease', 'noticed')
    redis.call('ZREM', leased, id)
    if delay > 0 then
      -- The clock was cut to the ms, so one more makes it never too early.
      local due = now + delay + 1
      if longest > 0 and delay > longest then
        redis.call('HSET', key, 'rest', due)
        due = now + longest
      end
      redis.call('ZADD', delayed, due, id)
      woken = woken or redis.call('ZRANGE', delayed, 0, 0)[1] == id
    else
      woken = redis.call('RPUSH', ready, id) == 1 or woken
    end
    out[#out + 1] = 1
  elseif f[2] == token then
    out[#out + 1] = 1
  elseif f[1] or redis.call('EXISTS', key) == 1 then
    out[#out + 1] = 0
  else
    out[#out + 1] = -1
  end
end
if woken then wake() end
return out
