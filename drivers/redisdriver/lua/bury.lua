-- Turns messages into dead letters. The message's own hash is renamed, so that a payload of any
-- size costs nothing. ARGV 2 and 3 the bounds, then for each: id, token, stalls, carry, and the
-- death's reason, outcome, cause, queue, time, digest, worker, attempt.
-- Returns dropped, expired, then 1, 0 or -1 for each as requeue does.
local out = {0, 0}
for i = 4, #ARGV, 12 do
  local id, token = ARGV[i], ARGV[i + 1]
  local key = messages .. id
  local mark = prefix .. ':t:' .. token .. ':' .. id
  local lease = redis.call('HGET', key, 'lease')
  if lease == token then
    local entry = redis.call('INCR', prefix .. ':deaths')
    local letter = deads .. entry
    redis.call('RENAME', key, letter)
    redis.call('HSET', letter, 'stored', now, 'stalls', ARGV[i + 2], 'carry', ARGV[i + 3],
      'Guesthand-Death-Reason', ARGV[i + 4], 'Guesthand-Death-Outcome', ARGV[i + 5],
      'Guesthand-Death-Cause', ARGV[i + 6], 'Guesthand-Death-Queue', ARGV[i + 7],
      'Guesthand-Death-Time', ARGV[i + 8], 'Guesthand-Death-Digest', ARGV[i + 9],
      'Guesthand-Death-Worker', ARGV[i + 10], 'Guesthand-Death-Attempt', ARGV[i + 11])
    redis.call('HSET', letter, 'key', id)
    redis.call('HDEL', letter, 'lease', 'noticed', 'settled', 'state', 'n')
    redis.call('ZREM', leased, id)
    redis.call('ZADD', dead, entry, entry)
    redis.call('SET', mark, entry, 'PX', 600000)
    out[#out + 1] = 1
  elseif redis.call('EXISTS', mark) == 1 then
    out[#out + 1] = 1
  elseif lease or redis.call('EXISTS', key) == 1 then
    out[#out + 1] = 0
  else
    out[#out + 1] = -1
  end
end
out[1], out[2] = bound(tonumber(ARGV[2]), tonumber(ARGV[3]))
return out
