-- Gives the newest tokens of a sliding budget back: what RL.REFUND key SLIDING … COST replaces. See tokens.lua.
-- KEYS[1] the log, KEYS[2] the sum; ARGV: window in seconds, tokens. Replies {refunded, left, window}.
local left = tonumber(ARGV[2])
while left > 0 do
  local newest = redis.call('ZPOPMAX', KEYS[1])
  if not newest[1] then break end
  local request, tokens = string.match(newest[1], '^(.*):(%d+)$')
  if tonumber(tokens) > left then
    redis.call('ZADD', KEYS[1], newest[2], string.format('%s:%.0f', request, tokens - left))
    left = 0
  else
    left = left - tokens
  end
end
local refunded = ARGV[2] - left
return {refunded, redis.call('DECRBY', KEYS[2], refunded), tonumber(ARGV[1])}
