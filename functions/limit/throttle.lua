-- The generic cell rate algorithm; src/limit/throttle/mod.rs has it in prose. Nanoseconds are two numbers here: whole seconds, and
-- what is left. A state has its `debt`: how far the arrival time is ahead of the clock. Where a request waits for its turn, `over` is how
-- far the arrival time is ahead of the tolerance then, `turn_in` the same in milliseconds, and `turn_at` when that is.

local BILLION = 1000000000

local function at_most(seconds, nanos, seconds_most, nanos_most)
  return seconds < seconds_most or seconds == seconds_most and nanos <= nanos_most
end

local function plus(seconds, nanos, more_seconds, more_nanos)
  seconds, nanos = seconds + more_seconds, nanos + more_nanos
  if nanos >= BILLION then
    return seconds + 1, nanos - BILLION
  end
  return seconds, nanos
end

-- The second time must not be later than the first.
local function minus(seconds, nanos, less_seconds, less_nanos)
  seconds, nanos = seconds - less_seconds, nanos - less_nanos
  if nanos < 0 then
    return seconds - 1, nanos + BILLION
  end
  return seconds, nanos
end

-- A time multiplied by an integer up to 2^53. Exact where the product is below 2^66 nanoseconds.
local function times(seconds, nanos, factor)
  local low, middle, high = factor % 1e6, floor(factor / 1e6) % 1e6, floor(factor / 1e12)
  local first, second = nanos * low, nanos * middle
  local rest = first % BILLION + second % 1000 * 1e6
  seconds = seconds * factor + floor(first / BILLION) + floor(second / 1000) + nanos * high * 1000
    + floor(rest / BILLION)
  return seconds, rest % BILLION
end

-- How many times the second time goes into the first: the quotient of doubles, which is close, and then corrected.
-- Above 2^53, which takes an arrival time that no limiter has stored, it is not corrected.
local function divided(seconds, nanos, by_seconds, by_nanos)
  local quotient = floor((seconds * BILLION + nanos) / (by_seconds * BILLION + by_nanos))
  if quotient >= MOST then
    return quotient
  end
  local product_seconds, product_nanos = times(by_seconds, by_nanos, quotient)
  while not at_most(product_seconds, product_nanos, seconds, nanos) do
    quotient = quotient - 1
    product_seconds, product_nanos = times(by_seconds, by_nanos, quotient)
  end
  while true do
    product_seconds, product_nanos = times(by_seconds, by_nanos, quotient + 1)
    if not at_most(product_seconds, product_nanos, seconds, nanos) then
      return quotient
    end
    quotient = quotient + 1
  end
end

local function to_millis(seconds, nanos)
  return seconds * 1000 + ceil(nanos / 1e6)
end

-- The end of 64 bits of nanoseconds since the epoch.
local function check_time(seconds, nanos)
  if not at_most(seconds, nanos, 9223372036, 854775807) then
    fail('ERR rl: RL.THROTTLE cannot count beyond 2262-04-11')
  end
end

-- `period` seconds divided by `count`, in nanoseconds, rounded up. Nothing if that is less than one.
local function interval_of(period, count)
  if count <= 9e6 then
    local rest = period % count * BILLION
    local more = rest % count
    return plus((period - period % count) / count, (rest - more) / count, 0, more > 0 and 1 or 0)
  end
  local by_seconds, by_nanos = floor(count / BILLION), count % BILLION
  local nanos = divided(period, 0, by_seconds, by_nanos)
  if nanos > 0 then
    local seconds, rest = times(by_seconds, by_nanos, nanos)
    nanos = (seconds == period and rest == 0) and nanos or nanos + 1
    return floor(nanos / BILLION), nanos % BILLION
  end
end

-- `factor` intervals, or nothing if they take longer than is counted.
local function intervals(rule, factor)
  if (rule.seconds * BILLION + rule.nanos) * factor < 1e19 then
    return times(rule.seconds, rule.nanos, factor)
  end
end

local function verdict(rule, state)
  state.shows_wait = rule.WITHIN
  state.asked_seconds, state.asked_nanos = intervals(rule, rule.quantity)
  if not state.asked_seconds
    or not at_most(state.asked_seconds, state.asked_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
    state.allowed, state.wait = false, -1
    return
  end
  local seconds, nanos = plus(state.debt_seconds, state.debt_nanos, state.asked_seconds, state.asked_nanos)
  state.allowed, state.wait = at_most(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos), 0
  if state.allowed then
    return
  end
  seconds, nanos = minus(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos)
  state.wait = to_millis(seconds, nanos)
  if rule.WITHIN and rule.quantity > 0 then
    local turn_in = state.wait
    state.wait = max(0, turn_in - rule.within)
    state.allowed = state.wait == 0
    if state.allowed then
      state.turn_in, state.over_seconds, state.over_nanos = turn_in, seconds, nanos
      state.turn_at = to_millis(plus(state.seconds, state.nanos, seconds, nanos))
    end
  end
end

local function decide(rule, state, counts)
  state.ahead_seconds, state.ahead_nanos = state.debt_seconds, state.debt_nanos
  state.counts = counts and state.allowed and rule.quantity > 0
  check_time(state.seconds, state.nanos)
  if state.allowed then
    local seconds, nanos = plus(state.debt_seconds, state.debt_nanos, state.asked_seconds, state.asked_nanos)
    check_time(plus(state.seconds, state.nanos, seconds, nanos))
    if state.counts then
      state.ahead_seconds, state.ahead_nanos = seconds, nanos
    end
  end
  state.remaining = 0
  if at_most(state.ahead_seconds, state.ahead_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
    local seconds, nanos =
      minus(rule.tolerance_seconds, rule.tolerance_nanos, state.ahead_seconds, state.ahead_nanos)
    state.remaining = divided(seconds, nanos, rule.seconds, rule.nanos)
  end
  state.binding = {limit = rule.limit, used = rule.limit - state.remaining}
end

-- What FULL, RL.ALL and RL.REFUND need.
local function complete()
  if throttle.statuses then
    return
  end

  -- Units that are used up by a debt, rounded up.
  local function used_by(rule, seconds, nanos)
    local used = divided(seconds, nanos, rule.seconds, rule.nanos)
    local product_seconds, product_nanos = times(rule.seconds, rule.nanos, used)
    return (product_seconds == seconds and product_nanos == nanos) and used or used + 1
  end

  function throttle.retry(_, state)
    return state.wait
  end

  function throttle.statuses(rule, state)
    local used, next_after = used_by(rule, state.ahead_seconds, state.ahead_nanos), 0
    if state.turn_at then
      used = used_by(rule, minus(state.ahead_seconds, state.ahead_nanos, state.over_seconds, state.over_nanos)) -- As of the turn.
    end
    if used > 0 then
      local seconds, nanos = times(rule.seconds, rule.nanos, rule.limit - state.remaining - 1)
      next_after = to_millis(minus(state.ahead_seconds, state.ahead_nanos, seconds, nanos))
    end
    return {{
      allowed = state.allowed, limit = rule.limit, used = used, retry = state.wait, next = next_after,
      reset = to_millis(state.ahead_seconds, state.ahead_nanos),
      window = to_millis(rule.tolerance_seconds, rule.tolerance_nanos), at = state.turn_at or state.now,
    }}
  end

  -- The arrival time goes back, never before now. While somebody waits, only the last turn can be taken back.
  function throttle.refund(rule, state)
    check_time(state.seconds, state.nanos)
    local before, quantity, last = used_by(rule, state.debt_seconds, state.debt_nanos), rule.quantity, state.now
    if not at_most(state.debt_seconds, state.debt_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
      local seconds, nanos = plus(state.seconds, state.nanos, state.debt_seconds, state.debt_nanos)
      last = to_millis(minus(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos))
    end
    quantity = max(rule.at or state.now, state.now) == last and quantity or 0
    local seconds, nanos = intervals(rule, quantity)
    -- Not computed as a difference of figures: those above 2^53 are rounded.
    if not seconds or at_most(state.debt_seconds, state.debt_nanos, seconds, nanos) then
      seconds, nanos, quantity = 0, 0, before
    else
      seconds, nanos = minus(state.debt_seconds, state.debt_nanos, seconds, nanos)
    end
    state.ahead_seconds, state.ahead_nanos = seconds, nanos
    state.counts = before > 0 and quantity > 0
    throttle.apply(rule, state)
    return {quantity, used_by(rule, seconds, nanos), ceil(to_millis(seconds, nanos) / 1000)}
  end
end
