-- The sliding window log; src/limit/sliding/mod.rs has it in prose. The wait is exact: a request fits as soon as enough units have
-- left the window, and the stamp of the last of them says when.
--
-- A state has the `log` and the functions of its form (state/sliding/mod.lua), a quota for each window, and how many units are
-- `newer` than now, where windows may begin to count units ahead of the clock. Where a request waits for its turn, that is the `now` of
-- the state, and `turn_in` the time until then.

-- Whether the request fits into each window.
local function judge(rule, state)
  local log = state.log
  state.quotas, state.allowed = {}, true
  for index = 1, rule.count do
    local used = rule.count == 1 and not state.turn_in and log.units - log.beyond or sliding.used(rule, state, index)
    local allowed = rule.limits[index] - used >= rule.needed
    state.quotas[index] =
      {limit = rule.limits[index], window = rule.windows[index], before = used, used = used, allowed = allowed}
    state.allowed = state.allowed and allowed
  end
end

local function verdict(rule, state)
  local log, store = state.log, state.store
  if rule.cost > MOST_ADDED and not store.is_compact then
    fail(COST_TOO_LARGE)
  elseif rule.count > 1 then
    sliding.complete()
    state.newer = store.stamped_after(log, state.now)
  else
    state.newer = log.beyond
  end
  judge(rule, state)
  if rule.WITHIN then
    sliding.complete()
    sliding.wait(rule, state)
  end
end

local function decide(rule, state, counts, is_short)
  local quotas = state.quotas
  local binding = quotas[1]
  state.added = counts and rule.FORCE and rule.cost or 0
  if rule.count > 1 then
    for index = 1, rule.count do
      quotas[index].retry = quotas[index].allowed and 0 or sliding.retry_of(rule, state, index)
    end
    binding = (several or make_several()).binding_of(sliding, rule, state)
  elseif not binding.allowed and not is_short then
    sliding.complete()
    binding.retry = sliding.retry_of(rule, state, 1)
  end
  state.retry = binding.retry or 0
  if binding.allowed then
    state.added = counts and rule.cost or 0
  elseif state.retry > 0 and rule.count > 1 and (state.newer > 0 or state.added > 0) then
    -- By then another quota may have no room: units ahead of the clock begin to count, and forced units count in all of them.
    state.retry = sliding.retry_in_all(rule, state, state.retry)
  end
  state.retry = state.late or state.retry
  for index = 1, rule.count do
    quotas[index].used = quotas[index].before + state.added
  end
  state.binding = binding
end

-- How many rounds a search takes for units that may begin to count, where a request may wait; behind more units than the second number,
-- beyond the longest window, one.
local ROUNDS_OF_A_QUEUE, LONG_QUEUE = 6, 48

-- What several windows and FULL need.
local function complete()
  if sliding.statuses then
    return
  end

  -- The stamp of the unit with `rank` newer ones, of those in the log and those that the call adds.
  local function stamp_of(state, rank)
    local log, store = state.log, state.store
    if state.added > 0 then
      state.later = state.later or store.stamped_after(log, state.now)
      if rank >= state.later then
        if rank < state.later + state.added then
          return state.now
        end
        rank = rank - state.added
      end
    end
    return store.stamp_of(log, rank)
  end

  -- The first time from `from` on at which each of these windows holds no more units, of those that expire, than may be left in
  -- it. Units ahead of a window begin to count as time goes on; then more have to expire, which takes another round. Once
  -- a call has looked into as many windows as it may, all units ahead count: the wait may be too long then, never too short.
  local function room_at(rule, state, windows, leftovers, from)
    local log, store, at = state.log, state.store, from
    local is_exact, rounds = state.newer > 0, not state.may_wait and math.huge or log.beyond > LONG_QUEUE and 1 or ROUNDS_OF_A_QUEUE
    repeat
      local begun = at
      is_exact, rounds = is_exact and rounds > 0 and budget.lookups >= #windows, rounds - 1
      budget.lookups = is_exact and budget.lookups - #windows or budget.lookups
      for index = 1, #windows do
        local ahead = is_exact and store.stamped_after(log, at + windows[index]) or 0
        local stamp = stamp_of(state, leftovers[index] + ahead)
        at = stamp and max(at, stamp + windows[index]) or at
      end
    until not is_exact or at == begun
    return at
  end

  local function wait(rule, state, window, leftover)
    return room_at(rule, state, {window}, {leftover}, state.now) - state.now
  end

  -- How many units of those that expire may be left in a window for the request to fit; negative if it never does.
  local function leftover(rule, state, index)
    return rule.limits[index] - rule.needed - state.log.permanent
  end

  -- Until one window by itself has room.
  function sliding.retry_of(rule, state, index)
    local left = leftover(rule, state, index)
    local after = left >= 0 and wait(rule, state, rule.windows[index], left) or 0
    return after > 0 and after or -1
  end

  -- Until all of them have, where one of them has after some time.
  function sliding.retry_in_all(rule, state, after)
    local windows, leftovers = {}, {}
    for index = 1, rule.count do
      local left = leftover(rule, state, index)
      if left >= 0 then
        windows[#windows + 1], leftovers[#windows + 1] = rule.windows[index], left
      end
    end
    return room_at(rule, state, windows, leftovers, state.now + after) - state.now
  end

  -- Units in the window of a quota.
  function sliding.used(rule, state, index)
    local log, store, window = state.log, state.store, rule.windows[index]
    if index == rule.count and not state.turn_in then
      return log.units - log.beyond
    end
    local used = store.later_than(log, state.now - window)
    return state.newer > 0 and used - store.stamped_after(log, state.now + window) or used
  end

  function sliding.retry(_, state)
    return state.retry
  end

  local function status(rule, state, quota)
    local next_after, left = 0, min(quota.used, quota.limit) - 1 - state.log.permanent
    if quota.used > 0 then
      next_after = left < 0 and -1 or wait(rule, state, quota.window, left)
    end
    local reset, turn_in = wait(rule, state, quota.window, 0), state.turn_in or 0
    return {
      limit = quota.limit, used = quota.used, next = next_after < 0 and -1 or next_after + turn_in, reset = reset + turn_in,
      window = quota.window, at = state.now,
    }
  end

  function sliding.statuses(rule, state, each)
    local statuses = (several or make_several()).statuses(sliding, rule, state, each, status)
    for index = 1, state.late and each and #statuses or 0 do
      -- The window that binds denies, also where each by itself has room in time and all together have not.
      local own = statuses[index]
      own.retry = own.window == state.binding.window and state.late or own.retry > 0 and max(0, own.retry - state.within) or own.retry
      own.allowed = own.retry == 0
    end
    return statuses
  end

  include 'limit/turn'

  -- Leaves out units of one stamp: a log without such units takes the place of the log, with functions of its own.
  sliding.leave_out = HELD and function(rule, state)
    if not state.leave_out then
      include 'state/sliding/without'
    end
    state.leave_out(rule.cost, rule.at)
  end

  -- Takes back the newest units that a clock has stamped, or some of one stamp.
  function sliding.refund(rule, state)
    local log, store, now, window, at = state.log, state.store, state.now, rule.windows[1], rule.at
    local taken = store.refund(log, rule.cost, at, budget.compaction)
    budget.compaction = not log.is_compacted and budget.compaction
    state.newer = 1 -- There may be some.
    local used = sliding.used(rule, state, 1)
    local gone = taken
    if at then
      gone = at > now - window and at <= now + window and taken or 0
    elseif taken > 0 and rule.count > 1 then
      -- Of the units taken, which are not later than now, those that are in this window. Those that never expire are in it and stay.
      local later = store.stamped_after(log, now) - store.stamped_after(log, now + window)
      gone = min(taken, max(0, used - log.permanent - later))
    end
    store.apply(log, false)
    return {taken, used - gone, ceil(window / 1000)}
  end
end
