-- A sliding window log as scripts do it: the behaviour that RL.SLIDING takes over.
-- KEYS[1] the log; ARGV: window in seconds, limit. Replies {allowed, count, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window * 1000)
local count = redis.call('ZCARD', KEYS[1])
local allowed = 0
if count < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s', now, tostring(math.random())))
  allowed = 1
end
redis.call('PEXPIRE', KEYS[1], window * 2000)
return {allowed, count, window}
