-- Requests, tokens and leases in one decision, all or nothing: what RL.ALL replaces. The states are those of sliding.lua,
-- tokens.lua and acquire.lua.
-- KEYS: the log of requests, the log of tokens, their sum, the leases. ARGV: window in seconds and limit of the requests; of
-- the tokens the same and the cost; limit of the leases, lease in seconds, holder.
-- Replies {allowed, index, remaining, retry after in milliseconds}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local span, most = ARGV[1] * 1000, tonumber(ARGV[2])
local budget_span, budget, cost = ARGV[3] * 1000, tonumber(ARGV[4]), tonumber(ARGV[5])
local seats, lease = tonumber(ARGV[6]), ARGV[7] * 1000

redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - span)
local requests = redis.call('ZCARD', KEYS[1])

local tokens
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], 0, now - budget_span)
if #expired > 0 then
  local gone = 0
  for _, member in ipairs(expired) do gone = gone + string.match(member, ':(%d+)$') end
  redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now - budget_span)
  tokens = redis.call('DECRBY', KEYS[3], gone)
else
  tokens = tonumber(redis.call('GET', KEYS[3]) or 0)
end

redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
local held = redis.call('ZCARD', KEYS[4])

-- Of the rules that deny, the one with the longest wait.
local index, remaining, retry
if requests >= most then
  index, remaining = 0, 0
  retry = redis.call('ZRANGE', KEYS[1], requests - most, requests - most, 'WITHSCORES')[2] + span - now
end
if tokens + cost > budget then
  local over, wait = tokens + cost - budget, -1
  if cost <= budget then
    local from = 0
    while over > 0 do
      local oldest = redis.call('ZRANGE', KEYS[2], from, from + 9, 'WITHSCORES')
      for i = 1, #oldest, 2 do
        over = over - string.match(oldest[i], ':(%d+)$')
        if over <= 0 then
          wait = oldest[i + 1] + budget_span - now
          break
        end
      end
      from = from + 10
    end
  end
  if not index or wait < 0 or wait > retry then index, remaining, retry = 1, math.max(0, budget - tokens), wait end
end
if held >= seats and not redis.call('ZSCORE', KEYS[4], ARGV[8]) then
  local wait = redis.call('ZRANGE', KEYS[4], held - seats, held - seats, 'WITHSCORES')[2] - now
  if not index or (retry >= 0 and wait > retry) then index, remaining, retry = 2, 0, wait end
end
if index then return {0, index, remaining, retry} end

redis.call('ZADD', KEYS[1], now, string.format('%.0f-%s', now, tostring(math.random())))
redis.call('PEXPIRE', KEYS[1], span * 2)
redis.call('ZADD', KEYS[2], now, string.format('%.0f-%s:%s', now, tostring(math.random()), ARGV[5]))
redis.call('INCRBY', KEYS[3], cost)
redis.call('PEXPIRE', KEYS[2], budget_span * 2)
redis.call('PEXPIRE', KEYS[3], budget_span * 2)
held = held + redis.call('ZADD', KEYS[4], now + lease, ARGV[8])
redis.call('PEXPIRE', KEYS[4], lease)

-- The one with the smallest share of its limit remaining.
index, remaining = 0, most - requests - 1
local share = remaining / most
if (budget - tokens - cost) / budget < share then
  index, remaining = 1, budget - tokens - cost
  share = remaining / budget
end
if (seats - held) / seats < share then index, remaining = 2, math.max(0, seats - held) end
return {1, index, remaining, 0}
