-- A call from its words to its reply.

-- Runs a command by its name in lower case, and returns the reply. Its words begin at words[at]. `is_plain`: whether it is
-- known to have one of the plain forms.
local function answer(command, keys, words, at, is_plain)
  local key, more = keys[1], #words - at
  -- The counters that the caller has declared after its key, if any.
  local declared = nil
  if #keys > 1 and command ~= 'all' then
    declared = {}
    for index = 2, #keys do
      declared[keys[index]] = true
    end
  end
  if is_plain or key and (command == 'sliding' and (more == 1 or more == 3 and string.upper(words[at + 2]) == 'COST')
    or command == 'fixed' and more == 1) then
    local window, limit = window_of(words[at]), within(words[at + 1], 0, MOST) or fail(BAD_LIMIT)
    if window < 0 then
      -- @ms
    elseif command == 'fixed' then
      return plain_fixed(key, window, limit, declared)
    else
      return plain_sliding(key, window, limit, more == 3 and (within(words[at + 3], 1, MOST) or fail(BAD_COST)))
    end
  end
  return (run or make_run())(command, keys, words, at, declared)
end
