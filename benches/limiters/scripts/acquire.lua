-- Leases in a sorted set, each until a time of its own: what RL.ACQUIRE replaces.
-- KEYS[1] the leases; ARGV: limit, lease in seconds, holder. Replies {allowed, held, lease}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZCARD', KEYS[1])
if held >= tonumber(ARGV[1]) and not redis.call('ZSCORE', KEYS[1], ARGV[3]) then return {0, held, lease} end
held = held + redis.call('ZADD', KEYS[1], now + lease * 1000, ARGV[3])
redis.call('PEXPIRE', KEYS[1], lease * 1000)
return {1, held, lease}
