-- Removes finished messages. ARGV from 2 on: id and token of each. Returns 1 where that was
-- done, 0 where the lease is another's, -1 where there is no such message.
local out, keys, ids = {}, {}, {}
for i = 2, #ARGV, 2 do
  local key = messages .. ARGV[i]
  local lease = redis.call('HGET', key, 'lease')
  if lease == ARGV[i + 1] then
    keys[#keys + 1] = key
    ids[#ids + 1] = ARGV[i]
    out[#out + 1] = 1
  elseif lease or redis.call('EXISTS', key) == 1 then
    out[#out + 1] = 0
  else
    out[#out + 1] = -1
  end
end
if #keys > 0 then
  redis.call('UNLINK', unpack(keys))
  redis.call('ZREM', leased, unpack(ids))
end
return out
