-- Put before every script. ARGV[1] is the queue's prefix; all keys of a queue begin with it.
local prefix = ARGV[1]
local messages, deads = prefix .. ':m:', prefix .. ':d:'
local ready, leased, delayed, dead = prefix .. ':ready', prefix .. ':lease', prefix .. ':delayed', prefix .. ':dead'

-- now is the server's clock, Unix ms: the one clock of all workers.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = clock()

-- wake tells waiting workers that there is something. It is a hint: they look every second
-- all the same, and a user that may not publish loses nothing else.
local function wake()
  redis.pcall('PUBLISH', prefix .. ':wake', '')
end

-- bound drops the oldest dead letters beyond max, and those older than keep ms; 0: no bound.
-- A thousand of each at a time, so that nobody waits for it.
local function bound(max, keep)
  local dropped, expired = 0, 0
  local over = max > 0 and math.min(redis.call('ZCARD', dead) - max, 1000) or 0
  if over > 0 then
    local oldest = redis.call('ZPOPMIN', dead, over)
    for i = 1, #oldest, 2 do
      redis.call('UNLINK', deads .. oldest[i])
      dropped = dropped + 1
    end
  end
  while keep > 0 and expired < 1000 do
    local entry = redis.call('ZRANGE', dead, 0, 0)[1]
    if not entry then break end
    local stored = tonumber(redis.call('HGET', deads .. entry, 'stored') or 0)
    if stored + keep > now then break end
    redis.call('ZREM', dead, entry)
    redis.call('UNLINK', deads .. entry)
    expired = expired + 1
  end
  return dropped, expired
end
