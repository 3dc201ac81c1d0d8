-- Gives a lease back: what RL.RELEASE replaces. The key expires with the last lease, as in acquire.lua.
-- KEYS[1] the leases; ARGV: holder. Replies how many leases were given back.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local released = redis.call('ZREM', KEYS[1], ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then redis.call('PEXPIREAT', KEYS[1], last) end
return released
