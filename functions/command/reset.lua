-- `key [windowSec ...] [HOLD]`: removes a key, the current counters of these windows, and with HOLD its holds. Returns how many keys
-- there were. All are checked before one is removed.
local reset = (not ONLY or ONLY == 'fixed') and function(words, at, key, declared)
  local windows, last = {}, #words
  local has_holds = words[at] and upper(words[last]) == 'HOLD'
  for index = at, has_holds and last - 1 or last do
    local window = window_of(words[index])
    if #windows > 0 and not is_longer(window, windows[#windows]) then
      fail(NOT_INCREASING)
    elseif #windows == MOST_WINDOWS then
      fail('ERR windowSec can be given for at most 16 windows')
    end
    windows[#windows + 1] = window
  end
  local now, fixed, names = clock(), rule_of('FIXED'), {}
  local kind = call('TYPE', key).ok
  if kind == 'string' or kind == 'zset' then
    names[1] = key
  elseif kind ~= 'none' then
    fail(WRONG_TYPE)
  end
  local function add(suffix, expected)
    local name = counter_name(key, suffix, declared)
    kind = call('TYPE', name).ok
    if kind == expected then
      names[#names + 1] = name
    elseif kind == 'none' then
      check_missing(key, name, declared)
    else
      fail(WRONG_TYPE)
    end
  end
  for index = 1, 2 * #windows do
    local suffix = fixed.suffix_of(windows[floor((index + 1) / 2)], now, index % 2 == 0)
    if not declared or declared[key .. ':' .. suffix] or declared['{' .. key .. '}:' .. suffix] then
      add(suffix, 'string')
    end
  end
  if has_holds then
    add('held', 'zset')
  end
  local removed = 0
  for index = 1, #names do
    removed = removed + call('UNLINK', names[index])
  end
  return removed
end
