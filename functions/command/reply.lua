-- How limits stand after the call, as maps. Servers send a map in the order in which Lua walks through it. Names
-- whose places in the table are taken go to the free place nearest its end, so the last to come is the first in order.
-- The names of two and three letters take the places, in the hashes of Lua 5.1 and of Valkey since 8.1. On another Lua
-- the order is another one, and nothing else.
local function maps_of(kind, rule, state, each)
  kind.complete()
  local maps = kind.statuses(rule, state, each)
  for index = 1, #maps do
    local status = maps[index]
    local map = {
      ye = 0, rt = 0, bex = 0, xl = 0, bcm = 0, ij = 0, aru = 0, br = 0, re = 0,
      ['wait-ms'] = state.shows_wait and (state.turn_in or 0) or nil, ['at-ms'] = status.at, ['window-ms'] = status.window, ['reset-after-ms'] = status.reset,
      ['next-after-ms'] = status.next, ['retry-after-ms'] = state.is_held and 0 or status.retry,
      ['remaining'] = max(0, status.limit - status.used), ['used'] = status.used, ['limit'] = status.limit,
      ['allowed'] = (status.allowed or state.is_held) and 1 or 0,
    }
    map.ye, map.rt, map.bex, map.xl, map.bcm, map.ij, map.aru, map.br, map.re = nil, nil, nil, nil, nil, nil, nil, nil, nil
    maps[index] = {map = map}
  end
  return maps
end
