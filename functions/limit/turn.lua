-- Turns in the log of a sliding window; src/limit/turn/mod.rs has them in prose.

-- The first time, not before `from`, at which the request fits into all windows, as far as it is looked for. Nothing if it never does.
function sliding.first_room(rule, state, from)
  local windows, leftovers, newer = {}, {}, state.newer
  for index = 1, rule.count do
    windows[index], leftovers[index] = rule.windows[index], leftover(rule, state, index)
    if leftovers[index] < 0 then
      return nil
    end
  end
  state.may_wait, state.newer = true, state.store.stamped_after(state.log, from)
  local room = room_at(rule, state, windows, leftovers, from)
  state.newer = newer
  return room
end

-- When a request that does not fit now has a turn: the first time with room, and from when on the queue takes it.
function sliding.outlook(rule, state)
  local room = sliding.first_room(rule, state, state.now)
  return room, rule.cost > 0 and state.store.place_from(state.log, rule.cost) or state.now
end

-- Until it gets a turn that is at most `within` away: 0 for now, -1 for never.
function sliding.retry_within(room, place, within, now)
  return room and max(0, room - now - within, min(place - now, room - now)) or -1
end

-- Makes the state that of the turn.
function sliding.take(rule, state, turn)
  state.late = nil
  if turn > state.now then
    state.turn_in, state.now, state.log.turn = turn - state.now, turn, rule.cost > 0 and turn
    state.newer = state.store.stamped_after(state.log, turn)
    judge(rule, state)
  end
end

-- Finds the turn of one request. `late`: without a turn, until it gets one.
function sliding.wait(rule, state)
  state.may_wait, state.shows_wait, state.within = true, true, rule.cost > 0 and rule.within or 0
  if not state.allowed then
    local room, place = sliding.outlook(rule, state)
    local late = sliding.retry_within(room, place, state.within, state.now)
    if late == 0 then
      sliding.take(rule, state, room)
    else
      state.late = late
    end
  end
end
