-- Several fixed windows, all or nothing: what RL.FIXED with several windows replaces.
-- KEYS[1] the name; ARGV: windows in seconds, each with its limit. Replies {allowed, count, ttl}.
local now = redis.call('TIME')[1]
local counters, allowed, count, binding, least = {}, 1, 0, 1, math.huge
for i = 1, #ARGV, 2 do
  local n = (i + 1) / 2
  counters[n] = string.format('%s:%.0f', KEYS[1], math.floor(now / ARGV[i]))
  local used = tonumber(redis.call('GET', counters[n]) or 0)
  local remaining = ARGV[i + 1] - used
  if remaining <= 0 then allowed = 0 end
  if remaining < least then count, binding, least = used, n, remaining end
end
if allowed == 1 then
  for n = 1, #counters do
    if redis.call('INCR', counters[n]) == 1 then redis.call('EXPIRE', counters[n], ARGV[2 * n - 1]) end
  end
  count = count + 1
end
return {allowed, count, redis.call('TTL', counters[binding])}
