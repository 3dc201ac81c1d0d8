-- Takes the newest requests out of a sliding window: what RL.REFUND key SLIDING replaces.
-- KEYS[1] the log; ARGV: window in seconds, requests. Replies {refunded, left, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window * 1000)
local taken = redis.call('ZPOPMAX', KEYS[1], ARGV[2])
return {#taken / 2, redis.call('ZCARD', KEYS[1]), window}
