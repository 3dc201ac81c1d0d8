-- `key [windowSec ...]`: removes a key, and the current counters of these windows. Returns how many keys there were. All are
-- checked before one is removed.
local reset = (not ONLY or ONLY == 'fixed') and function(words, at, key, declared)
  local windows = {}
  for index = at, #words do
    local window = window_of(words[index], 'windowSec')
    if #windows > 0 and window <= windows[#windows] then
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
  for index = 1, 2 * #windows do
    local suffix = fixed.suffix_of(windows[floor((index + 1) / 2)], now, index % 2 == 0)
    if not declared or declared[key .. ':' .. suffix] or declared['{' .. key .. '}:' .. suffix] then
      local name = counter_name(key, suffix, declared)
      kind = call('TYPE', name).ok
      if kind == 'string' then
        names[#names + 1] = name
      elseif kind == 'none' then
        check_missing(key, name, declared)
      else
        fail(WRONG_TYPE)
      end
    end
  end
  local removed = 0
  for index = 1, #names do
    removed = removed + call('UNLINK', names[index])
  end
  return removed
end
