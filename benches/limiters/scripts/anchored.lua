-- A window that begins with its first request: what RL.FIXED … ANCHORED replaces.
-- KEYS[1] the counter; ARGV: window in seconds, limit. Replies {allowed, count, ttl}.
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
local allowed = 0
if count <= tonumber(ARGV[2]) then allowed = 1 end
return {allowed, count, redis.call('TTL', KEYS[1])}
