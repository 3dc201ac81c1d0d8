-- A sliding budget of tokens: what RL.SLIDING … COST replaces. The log is a sorted set with a member a request, which ends
-- with its tokens. Their sum is kept beside it, so that only what has expired has to be read.
-- KEYS[1] the log, KEYS[2] the sum; ARGV: window in seconds, limit, cost. Replies {allowed, used, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window, cost = tonumber(ARGV[1]), tonumber(ARGV[3])
local used
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now - window * 1000)
if #expired > 0 then
  local tokens = 0
  for _, member in ipairs(expired) do tokens = tokens + string.match(member, ':(%d+)$') end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window * 1000)
  used = redis.call('DECRBY', KEYS[2], tokens)
else
  used = tonumber(redis.call('GET', KEYS[2]) or 0)
end
if used + cost > tonumber(ARGV[2]) then return {0, used, window} end
redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s:%s', now, tostring(math.random()), ARGV[3]))
redis.call('INCRBY', KEYS[2], cost)
redis.call('PEXPIRE', KEYS[1], window * 2000)
redis.call('PEXPIRE', KEYS[2], window * 2000)
return {1, used, window}
