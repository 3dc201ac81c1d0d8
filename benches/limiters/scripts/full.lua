-- The sliding window with all that a response's headers need: what RL.SLIDING … FULL replaces.
-- KEYS[1] the log; ARGV: window in seconds, limit. Replies names and integers in turn.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local span, limit = tonumber(ARGV[1]) * 1000, tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - span)
local used = redis.call('ZCARD', KEYS[1])
local allowed, retry = 0, 0
if used < limit then
  redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s', now, tostring(math.random())))
  allowed, used = 1, used + 1
else
  retry = redis.call('ZRANGE', KEYS[1], used - limit, used - limit, 'WITHSCORES')[2] + span - now
end
local reset = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] + span - now
redis.call('PEXPIRE', KEYS[1], span * 2)
return {'allowed', allowed, 'limit', limit, 'used', used, 'remaining', limit - used,
        'retry-after-ms', retry, 'reset-after-ms', reset, 'window-ms', span}
