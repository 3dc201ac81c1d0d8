-- GCRA as scripts do it: what RL.THROTTLE replaces. KEYS[1] the theoretical arrival time in microseconds.
-- ARGV: burst, count, period in seconds. Replies the five integers of CL.THROTTLE: limited, limit, remaining,
-- retry after, reset after.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = ARGV[3] * 1000000 / ARGV[2]
local limit = ARGV[1] + 1
local tolerance = interval * limit
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local next_arrival = arrival + interval
local room = tolerance - (next_arrival - now)
if room < 0 then
  return {1, limit, 0, math.ceil(-room / 1000000), math.ceil((arrival - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', next_arrival), 'PX', math.ceil((next_arrival - now) / 1000))
return {0, limit, math.floor(room / interval), -1, math.ceil((next_arrival - now) / 1000000)}
