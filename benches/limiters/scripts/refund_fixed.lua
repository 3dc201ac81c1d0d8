-- Takes requests back from the counter of the present window, down to 0: what RL.REFUND key FIXED replaces.
-- KEYS[1] the name; ARGV: window in seconds, requests. Replies {refunded, left, ttl}.
local counter = string.format('%s:%.0f', KEYS[1], math.floor(redis.call('TIME')[1] / ARGV[1]))
local count = tonumber(redis.call('GET', counter) or 0)
local refunded = math.max(0, math.min(count, tonumber(ARGV[2])))
if refunded > 0 then count = redis.call('DECRBY', counter, refunded) end
return {refunded, count, redis.call('TTL', counter)}
