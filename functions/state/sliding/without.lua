-- The log of a peek without the units of holds that have ended. `left_out` has a part for each stamp, the latest first: its units that are
-- left out, and how many in the log are `newer`.

local log, store, left_out = state.log, state.store, {}
if store.complete then
  store.complete()
end
local rest = {units = log.units, beyond = log.beyond, permanent = log.permanent}

local function left_out_after(time)
  local units = 0
  for index = 1, #left_out do
    units = units + (left_out[index].at > time and left_out[index].units or 0)
  end
  return units
end

state.log, state.store = rest, {
  is_compact = store.is_compact,
  plan = function() end, -- It is not asked whether there is room in the log.
  later_than = function(_, time)
    return store.later_than(log, time) - left_out_after(time)
  end,
  stamped_after = function(_, time)
    return store.stamped_after(log, time) - left_out_after(time)
  end,
  stamp_of = function(_, rank)
    for index = 1, #left_out do
      rank = rank < left_out[index].newer and rank or rank + left_out[index].units
    end
    return store.stamp_of(log, rank)
  end,
}

state.leave_out = function(units, at)
  local place = 1
  while left_out[place] and left_out[place].at > at do
    place = place + 1
  end
  local part = left_out[place]
  if not part or part.at < at then
    part = {at = at, units = 0, there = store.refundable(log, at), newer = store.stamped_after(log, at)}
    table.insert(left_out, place, part)
  end
  units = min(units, part.there - part.units)
  part.units, rest.units = part.units + units, rest.units - units
  rest.beyond = at > log.now + log.window and rest.beyond - units or rest.beyond
end
