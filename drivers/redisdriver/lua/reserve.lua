-- Hands out messages under a lease, after putting back what is due or has lost its worker.
-- ARGV 2 owner, 3 the request's number, 4 how many, 5 lease ms, 6 most bytes, 7 longest delay
-- ms or 0, 8 '1' where the request is repeated for want of an answer.
-- Returns now, when something else falls due (or 0), ids without a message, then the messages.
local owner, request, most, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local room, longest, again = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
local token = owner .. ':' .. ARGV[3]
local record = prefix .. ':r:' .. owner
local handed, leases, seen = {}, {}, {}

local function hand(id, key, f, first)
  local n = (tonumber(f[1]) or 0) + (first and 1 or 0)
  local at = f[6]
  if not at then
    at = now
    redis.call('HSET', key, 'at', at)
  end
  if first then
    redis.call('HSET', key, 'lease', token, 'n', n)
  end
  leases[#leases + 1] = now + lease + 1
  leases[#leases + 1] = id
  local m = {id, n, f[2], f[3], f[4], f[5], at}
  if f[1] then
    local c = redis.call('HMGET', key, 'stalls', 'noticed', 'carry', 'state')
    m[8], m[9], m[10], m[11] = c[1], c[2], c[3], c[4]
  end
  handed[#handed + 1] = m
  seen[id] = true
end

local function read(key)
  return redis.call('HMGET', key, 'n', 'payload', 'headers', 'job', 'id', 'at', 'lease')
end

-- A request is answered once. Its repetition gets what the first one handed out; a first one
-- that arrives late, when it was repeated already, gets nothing.
local last = redis.call('GET', record)
if last then
  local was = cmsgpack.unpack(last)
  if was[1] > request or was[1] == request and not again then
    return {now, 0, 0}
  end
  if was[1] == request then
    for i = 2, #was do
      local key = messages .. was[i]
      local f = read(key)
      if f[7] == token then hand(was[i], key, f, false) end
    end
    if #leases > 0 then redis.call('ZADD', leased, unpack(leases)) end
    return {now, 0, 0, unpack(handed)}
  end
end

local function front(ids)
  for i = #ids, 1, -1 do redis.call('LPUSH', ready, ids[i]) end
end

local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 256)
local risen = {}
for _, id in ipairs(due) do
  local rest = tonumber(redis.call('HGET', messages .. id, 'rest') or 0)
  if rest > now then
    if longest > 0 then rest = math.min(rest, now + longest) end
    redis.call('ZADD', delayed, rest, id)
  else
    redis.call('ZREM', delayed, id)
    if rest > 0 then redis.call('HDEL', messages .. id, 'rest') end
    risen[#risen + 1] = id
  end
end
front(risen)

-- A lease that ran out is a stall, noticed with the next delivery.
local expired = redis.call('ZRANGEBYSCORE', leased, '-inf', '(' .. now, 'LIMIT', 0, 256)
if #expired > 0 then
  for _, id in ipairs(expired) do
    local key = messages .. id
    if redis.call('EXISTS', key) == 1 then
      redis.call('HINCRBY', key, 'stalls', 1)
      redis.call('HSET', key, 'noticed', 1)
      redis.call('HDEL', key, 'lease')
    end
  end
  redis.call('ZREM', leased, unpack(expired))
  front(expired)
end

local missing, bytes, full = 0, 0, false
while #handed < most and not full do
  local ids = redis.call('LPOP', ready, math.min(most - #handed, 64))
  if not ids then break end
  for i, id in ipairs(ids) do
    if full then
      front({unpack(ids, i)})
      break
    end
    local key = messages .. id
    local f = read(key)
    if not (f[1] or f[2] or f[6]) and redis.call('EXISTS', key) == 0 then
      missing = missing + 1
    elseif seen[id] or f[7] and redis.call('ZSCORE', leased, id) then
      -- queued twice by a producer; somebody has it
    else
      hand(id, key, f, true)
      bytes = bytes + #(f[2] or '') + #(f[3] or '')
      full = bytes >= room
    end
  end
end

if #handed > 0 or again then
  if #leases > 0 then redis.call('ZADD', leased, unpack(leases)) end
  local was = {request}
  for i, m in ipairs(handed) do was[i + 1] = m[1] end
  redis.call('SET', record, cmsgpack.pack(was), 'PX', lease + 60000)
end
if #due + #expired > #handed then wake() end

local next = 0
if #handed < most then
  for _, set in ipairs({delayed, leased}) do
    local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
    if first[2] then
      local at = tonumber(first[2])
      if next == 0 or at < next then next = at end
    end
  end
end
return {now, next, missing, unpack(handed)}
