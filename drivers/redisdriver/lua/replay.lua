-- Sends a dead letter's message again. ARGV 2 entry, 3 headers, 4 carry. Returns 1, or 0 where
-- there is no such entry.
local letter = deads .. ARGV[2]
if redis.call('ZSCORE', dead, ARGV[2]) == false or redis.call('EXISTS', letter) == 0 then return 0 end
local id = redis.call('INCR', prefix .. ':seq')
local key = messages .. id
redis.call('RENAME', letter, key)
redis.call('HDEL', key, 'stored', 'key', 'rest', 'Guesthand-Death-Reason', 'Guesthand-Death-Outcome', 'Guesthand-Death-Cause',
  'Guesthand-Death-Queue', 'Guesthand-Death-Time', 'Guesthand-Death-Digest', 'Guesthand-Death-Worker', 'Guesthand-Death-Attempt')
redis.call('HSET', key, 'headers', ARGV[3], 'carry', ARGV[4], 'stalls', 0, 'n', 0, 'at', now)
redis.call('ZREM', dead, ARGV[2])
if redis.call('RPUSH', ready, id) == 1 then wake() end
return 1
