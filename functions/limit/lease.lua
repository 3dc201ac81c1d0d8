-- Leases: at most `limit` holders at a time; src/limit/lease/mod.rs has it in prose.
--
-- A state has how many leases are `held`, when the holder's `own` ends, and how many have `ended` and are still there.

local function verdict(rule, leases)
  leases.allowed = leases.own ~= nil or leases.held < rule.limit
end

local function decide(rule, leases, counts)
  leases.counts = counts and leases.allowed
  leases.held_after = leases.held + (leases.counts and not leases.own and 1 or 0)
  leases.binding = {limit = rule.limit, used = leases.held_after}
end

-- What FULL and RL.ALL need.
local function complete()
  if acquire.statuses then
    return
  end

  -- Milliseconds until a lease ends, by its place from 0 in the order of their ends after the call.
  local function end_of(rule, leases, place)
    local key, now = leases.key, leases.now
    local function stored(index)
      local found = call('ZRANGEBYSCORE', key, format('(%d', now), '+inf', 'WITHSCORES', 'LIMIT', index, 1)
      local at = tonumber(found[2])
      return at <= MOST and ceil(at) - now or -1
    end
    if not leases.counts then
      return stored(place)
    end
    local new = now + rule.lease
    local earlier = call('ZCOUNT', key, format('(%d', now), format('(%.0f', new))
    if leases.own and leases.own < new then
      earlier = earlier - 1
    end
    if place == earlier then
      return rule.lease
    elseif place > earlier then
      place = place - 1
    end
    if leases.own and place >= call('ZRANK', key, rule.holder) - leases.ended then
      place = place + 1
    end
    return stored(place)
  end

  function acquire.retry(rule, leases)
    if leases.allowed then
      return 0
    end
    return rule.limit == 0 and -1 or end_of(rule, leases, leases.held - rule.limit)
  end

  function acquire.statuses(rule, leases)
    local held, next_after, reset = leases.held_after, 0, 0
    if held > 0 then
      next_after = rule.limit == 0 and -1 or end_of(rule, leases, max(0, held - rule.limit))
      reset = end_of(rule, leases, held - 1)
    end
    return {{
      allowed = leases.allowed, limit = rule.limit, used = held, retry = acquire.retry(rule, leases), next = next_after,
      reset = reset, window = rule.lease, at = leases.now,
    }}
  end
end
