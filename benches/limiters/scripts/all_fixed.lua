-- Fixed windows of several keys, all or nothing: what RL.ALL with rules of FIXED replaces.
-- KEYS: the names; ARGV: window in seconds, and the limit of each. Replies {allowed, index, remaining, retry after in ms}.
local time = redis.call('TIME')
local number = math.floor(time[1] / ARGV[1])
local counters = {}
for i, key in ipairs(KEYS) do counters[i] = string.format('%s:%.0f', key, number) end
local counts = redis.call('MGET', unpack(counters))
for i, count in ipairs(counts) do
  if count and tonumber(count) >= tonumber(ARGV[i + 1]) then
    local retry = (number + 1) * ARGV[1] * 1000 - time[1] * 1000 - math.floor(time[2] / 1000)
    return {0, i - 1, 0, retry}
  end
end
local index, remaining, share = 0, 0, math.huge
for i, counter in ipairs(counters) do
  local count = redis.call('INCR', counter)
  if count == 1 then redis.call('EXPIRE', counter, ARGV[1]) end
  local free = ARGV[i + 1] - count
  if free / ARGV[i + 1] < share then index, remaining, share = i - 1, free, free / ARGV[i + 1] end
end
return {1, index, remaining, 0}
