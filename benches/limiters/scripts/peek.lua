-- A look at the sliding window that changes nothing: what RL.PEEK key SLIDING replaces.
-- KEYS[1] the log; ARGV: window in seconds, limit. Replies {allowed, count, window}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = tonumber(ARGV[1])
local count = redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', now - window * 1000), '+inf')
local allowed = 0
if count < tonumber(ARGV[2]) then allowed = 1 end
return {allowed, count, window}
