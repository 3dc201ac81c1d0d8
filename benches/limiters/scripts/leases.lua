-- A look at leases that changes nothing: what RL.PEEK key ACQUIRE replaces.
-- KEYS[1] the leases; ARGV: limit, lease in seconds, holder. Replies {allowed, held, lease}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', now), '+inf')
local own = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[3]) or 0)
local lease = tonumber(ARGV[2])
if own > now then return {1, held, lease} end
if held < tonumber(ARGV[1]) then return {1, held + 1, lease} end
return {0, held, lease}
