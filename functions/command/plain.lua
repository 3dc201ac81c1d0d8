-- The plain forms, `windowSec limit` and of sliding windows also with `COST n`: most calls have one of them. They take the same
-- steps as all other calls, without what only several windows and other options need; a call costs about half as much.

local plain_sliding = (not ONLY or PLAIN and ONLY == 'sliding') and function(key, window, limit, cost)
  local log, store = (open_log or make_logs())(key, window, clock(), cost, not cost or cost <= MOST_ADDED)
  local needed = cost or 1
  if needed > MOST_ADDED and not store.is_compact then
    fail(COST_TOO_LARGE)
  end
  local used = log.units - log.beyond
  local allowed = limit - used >= needed
  store.plan(log, allowed and needed or 0, 'due')
  store.apply(log, true)
  return {allowed and 1 or 0, used, math.ceil(window / 1000)}
end

-- Counts first and compares then: the counter goes up whatever the limit.
local plain_fixed = (not ONLY or PLAIN and ONLY == 'fixed') and function(key, window, limit, declared)
  local now = clock()
  local name = counter_name(key, format('%d', floor(now / window)), declared)
  -- If it is not known whether this node has the counter.
  if in_cluster ~= false and not declared and type(redis.pcall('EXISTS', key, name)) == 'table'
    and redis.pcall('EXISTS', name) ~= 1 then
    call('EXISTS', key, name)
  end
  local count = call('INCR', name)
  local expiry = count ~= 1 and expiry_of(name, now)
  if not expiry then
    expiry = now + window
    call('PEXPIREAT', name, expiry)
  end
  local left = expiry > now and expiry - now or 0
  return {count <= limit and 1 or 0, count, floor((left + 500) / 1000)} -- Rounded as the TTL command does it.
end
