-- A counter a window as scripts do it: the behaviour that RL.FIXED takes over.
-- KEYS[1] the name; ARGV: window in seconds, limit. Replies {allowed, count, ttl}.
local window = tonumber(ARGV[1])
local counter = string.format('%s:%.0f', KEYS[1], math.floor(redis.call('TIME')[1] / window))
local count = redis.call('INCR', counter)
if count == 1 then redis.call('EXPIRE', counter, window) end
local allowed = 0
if count <= tonumber(ARGV[2]) then allowed = 1 end
return {allowed, count, redis.call('TTL', counter)}
