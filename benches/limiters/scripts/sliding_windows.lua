-- Several sliding windows on one log, all or nothing: what RL.SLIDING with several windows replaces.
-- KEYS[1] the log; ARGV: windows in seconds, the longest last, each with its limit. Replies {allowed, count, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local longest = tonumber(ARGV[#ARGV - 1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - longest * 1000)
local allowed, count, window, least = 1, 0, longest, math.huge
for i = 1, #ARGV, 2 do
  local used = redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', now - ARGV[i] * 1000), '+inf')
  local remaining = ARGV[i + 1] - used
  if remaining <= 0 then allowed = 0 end
  if remaining < least then count, window, least = used, tonumber(ARGV[i]), remaining end
end
if allowed == 1 then
  redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s', now, tostring(math.random())))
end
redis.call('PEXPIRE', KEYS[1], longest * 2000)
return {allowed, count, window}
