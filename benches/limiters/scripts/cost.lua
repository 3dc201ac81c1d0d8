-- The sliding window with a weight: what RL.SLIDING … COST replaces.
-- KEYS[1] the log; ARGV: window in seconds, limit, cost. Replies {allowed, count, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window, cost = tonumber(ARGV[1]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window * 1000)
local count = redis.call('ZCARD', KEYS[1])
local allowed = 0
if count + cost <= tonumber(ARGV[2]) then
  for _ = 1, cost do
    redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s', now, tostring(math.random())))
  end
  allowed = 1
end
redis.call('PEXPIRE', KEYS[1], window * 2000)
return {allowed, count, window}
