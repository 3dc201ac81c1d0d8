-- The fixed window counter; src/limit/fixed/mod.rs has it in prose.
--
-- A state has a quota for each window: `value` and `expiry` as stored, `used` and `expiry_after` after the call.

-- Refuses a cost that would bring a counter with 19 digits beyond 64 bits.
local function check_overflow(text, cost)
  local high, low = tonumber(string.sub(text, 1, -10)), tonumber(string.sub(text, -9)) + cost % 1e9
  high, low = high + floor(cost / 1e9) + floor(low / 1e9), low % 1e9
  if high > 9223372036 or high == 9223372036 and low > 854775807 then
    fail('ERR increment or decrement would overflow')
  end
end

local function verdict(rule, state)
  state.allowed = true
  for index = 1, rule.count do
    local quota = state.quotas[index]
    quota.allowed = quota.limit - quota.value >= rule.needed
    state.allowed = state.allowed and quota.allowed
  end
end

local function decide(rule, state, counts)
  counts = counts and rule.cost > 0
  state.counts = counts
  for index = 1, rule.count do
    local quota = state.quotas[index]
    quota.used, quota.expiry_after = quota.value, quota.expiry
    if counts and not quota.is_over then
      if #quota.text >= 19 and quota.value > 0 then
        check_overflow(quota.text, rule.cost)
      end
      quota.used = quota.value + rule.cost
      if not quota.expiry or quota.value == 0 then
        quota.expiry_after, quota.renewed = state.now + quota.life, true
      end
    end
  end
  state.binding = state.quotas[1]
  if rule.count > 1 then
    fixed.complete()
    state.binding = (several or make_several()).binding_of(fixed, rule, state)
  end
end

-- What several windows, FULL and RL.REFUND need.
local function complete()
  if fixed.statuses then
    return
  end

  -- Until the next request finds a counter at 0.
  local function fresh_after(rule, state, quota)
    local at = quota.ends or quota.expiry_after or state.now + quota.life
    if not (rule.ANCHORED or quota.ends) then
      -- The server keeps a key through the very millisecond of its expiry.
      local window = quota.window
      local next_window = (floor(state.now / window) + 1) * window
      at = quota.expiry_after and min(next_window, quota.expiry_after + 1) or next_window
    end
    return max(1, at - state.now)
  end

  function fixed.retry_of(rule, state, index)
    local quota = state.quotas[index]
    return rule.needed > quota.limit and -1 or fresh_after(rule, state, quota)
  end

  function fixed.retry(rule, state)
    local longest = 0
    for index = 1, state.allowed and 0 or rule.count do
      local quota = state.quotas[index]
      if not quota.allowed or quota.limit - quota.used < rule.needed then
        local wait = fixed.retry_of(rule, state, index)
        if wait < 0 then
          return -1
        end
        longest = max(longest, wait)
      end
    end
    return longest
  end

  local function status(rule, state, quota)
    local fresh = quota.used > 0 and fresh_after(rule, state, quota) or 0
    local next_after = quota.used > 0 and quota.limit == 0 and -1 or fresh
    return {
      limit = quota.limit, used = quota.used, next = next_after, reset = fresh, window = max(0, quota.window),
      at = state.now,
    }
  end

  function fixed.statuses(rule, state, each)
    return (several or make_several()).statuses(fixed, rule, state, each, status)
  end

  -- The units of a counter that a refund takes back.
  local function refundable(rule, quota, now)
    local at = rule.at
    local in_window = not at
    if quota.ends then
      in_window = not quota.is_over
    elseif at and rule.ANCHORED then
      in_window = quota.expiry and at >= quota.expiry - quota.window and at < quota.expiry
    elseif at then
      in_window = floor(at / quota.window) == floor(now / quota.window)
    end
    return quota.exists and in_window and max(0, min(rule.cost, quota.value)) or 0
  end

  -- The rule has some of the windows.
  fixed.leave_out = HELD and function(rule, state)
    local place = 1
    for index = 1, #state.quotas do
      local quota = state.quotas[index]
      if quota.window == rule.windows[place] then
        quota.value, place = quota.value - refundable(rule, quota, state.now), place + 1
      end
    end
  end

  function fixed.refund(rule, state)
    local now, most = state.now, 0
    for index = rule.count, 1, -1 do
      local quota = state.quotas[index]
      local units = refundable(rule, quota, now)
      if units > 0 then
        call('INCRBY', quota.name, format('-%.0f', units))
        most, quota.value = max(most, units), quota.value - units
      end
    end
    local first = state.quotas[1]
    local expiry = first.ends or first.expiry or now + first.life
    return {most, first.value, floor((max(0, expiry - now) + 500) / 1000)}
  end
end
