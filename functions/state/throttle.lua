-- The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
-- redis-cell stores it. The key expires when that time has passed, since it has no effect from then on.

local function read(_, key, now, seconds, nanos)
  local text = call('GET', key)
  local state = {key = key, now = now, seconds = seconds, nanos = nanos, debt_seconds = 0, debt_nanos = 0}
  if text then
    if read_integer(text) < 0 then
      fail(NOT_AN_INTEGER)
    end
    local stored_seconds, stored_nanos = tonumber(sub(text, 1, -10)) or 0, tonumber(sub(text, -9))
    if not at_most(stored_seconds, stored_nanos, seconds, nanos) then
      state.debt_seconds, state.debt_nanos = minus(stored_seconds, stored_nanos, seconds, nanos)
    end
  end
  return state
end

local function apply(_, state)
  if not state.counts then
    return
  elseif state.ahead_seconds == 0 and state.ahead_nanos == 0 then
    call('UNLINK', state.key) -- It says nothing any more.
    return
  end
  local seconds, nanos = plus(state.seconds, state.nanos, state.ahead_seconds, state.ahead_nanos)
  local digits = seconds > 0 and format('%.0f%09.0f', seconds, nanos) or format('%.0f', nanos)
  call('SET', state.key, digits, 'PXAT', to_millis(seconds, nanos))
end
