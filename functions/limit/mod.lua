-- What several windows and FULL need of a rule of windows.

local several = nil

local make_several = ONLY ~= 'throttle' and ONLY ~= 'acquire' and function()
  several = {}

  -- Which quota binds: of those that deny, the one with the longest wait; if none denies, or their waits are equal,
  -- the one with the fewest free units; of equals, the one with the shortest window. A wait of -1 never ends.
  function several.binding_of(kind, rule, state)
    local denying = 0
    for index = 1, rule.count do
      if not state.quotas[index].allowed then
        denying = denying + 1
      end
    end
    local binding, longest, fewest
    for index = 1, rule.count do
      local quota = state.quotas[index]
      if denying == 0 or not quota.allowed then
        local wait = denying > 1 and (quota.retry or kind.retry_of(rule, state, index)) or 0
        wait = wait < 0 and math.huge or wait
        local free = quota.limit - quota.used
        if not binding or wait > longest or wait == longest and free < fewest then
          binding, longest, fewest = quota, wait, free
        end
      end
    end
    return binding
  end

  -- The status of the binding window, or of each, with whether it has room and the wait.
  function several.statuses(kind, rule, state, each, status)
    if not each then
      local binding = status(rule, state, state.binding)
      binding.allowed, binding.retry = state.allowed, kind.retry(rule, state)
      return {binding}
    end
    local statuses = {}
    for index = 1, rule.count do
      local quota = state.quotas[index]
      local retry = quota.allowed and 0 or kind.retry_of(rule, state, index)
      statuses[index] = status(rule, state, quota)
      statuses[index].allowed, statuses[index].retry = quota.allowed, retry
    end
    return statuses
  end

  return several
end
