-- Extends leases. ARGV 2 lease ms, then id and token of each. An entry that was lost beside its
-- message is made anew. Returns 1 for each that is still held, else 0.
local lease, out, held = tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV, 2 do
  local mine = redis.call('HGET', messages .. ARGV[i], 'lease') == ARGV[i + 1]
  out[#out + 1] = mine and 1 or 0
  if mine then
    held[#held + 1] = now + lease + 1
    held[#held + 1] = ARGV[i]
  end
end
if #held > 0 then redis.call('ZADD', leased, unpack(held)) end
return out
