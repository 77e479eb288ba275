-- Stores messages. ARGV 2 how long a key is remembered, ms, then for each: id, job, headers,
-- payload, not-before as Unix ms or 0, key or nothing. Returns how many were stored; the others'
-- keys were known.
local window, stored, woken = tonumber(ARGV[2]), 0, false
for i = 3, #ARGV, 6 do
  local due, dedupe = tonumber(ARGV[i + 4]), ARGV[i + 5]
  if dedupe == '' or redis.call('SET', prefix .. ':k:' .. dedupe, ARGV[i], 'NX', 'PX', window) then
    local id = redis.call('INCR', prefix .. ':seq')
    local key = messages .. id
    if ARGV[i + 2] == '' then
      redis.call('HSET', key, 'id', ARGV[i], 'job', ARGV[i + 1], 'payload', ARGV[i + 3], 'at', now)
    else
      redis.call('HSET', key, 'id', ARGV[i], 'job', ARGV[i + 1], 'payload', ARGV[i + 3], 'at', now, 'headers', ARGV[i + 2])
    end
    if due > now then
      redis.call('ZADD', delayed, due, id)
      woken = woken or redis.call('ZRANGE', delayed, 0, 0)[1] == tostring(id)
    else
      woken = redis.call('RPUSH', ready, id) == 1 or woken
    end
    stored = stored + 1
  end
end
if woken then wake() end
return stored
