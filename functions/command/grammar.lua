-- The grammar of the rules, and the errors for words that do not follow it. `command` is where a rule is given: a rule's own
-- command, peek, refund or all.

local BAD_AT = 'ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991'

-- Words like these are meant as a number, in or out of range, or as a window. All other words are meant as options.
local LIKE_A_NUMBER = '^[%d+.-]'
local LIKE_A_WINDOW = '^[%d+.@-]'

-- Refuses words that a rule does not take where it is given. `syntax`: its name, what follows the key, and what its own command
-- takes for the reply.
local function bad_words(command, syntax)
  local _, _, name, words = find(syntax, '^(%u+) (.*)$')
  if command ~= lower(name) then
    _, _, words = find(syntax, '^(.*) %[')
    -- How long a request may wait is said behind the rule.
    local waits, gsub = find(words, 'WITHIN ms]', 1, true), string.gsub
    words = gsub(gsub(words, ' | WITHIN ms%]', ']'), ' %[WITHIN ms%]', '')
    words = command == 'refund' and gsub(words, ' %[HOLD.-%]', '') .. ' [AT ms]' or command == 'settle' and words .. ' ACTUAL n'
      or words .. ((waits or command == 'all') and ' [WITHIN ms]' or '') .. (command == 'peek' and ' [FULL | EACH]' or ' [FULL]')
  end
  fail('ERR syntax error: expected ' .. words)
end

-- For how many milliseconds a request may wait for its turn.
local function wait_of(word)
  return within(word, 0, 3600000) or fail('ERR WITHIN must be an integer number of milliseconds from 0 to 3600000')
end

-- Reads the options of a rule into it, in any order and each once, and returns where they end: in RL.ALL at the next rule,
-- elsewhere with the call. rule.FORCE and so on say which were given.
local function options(rule, words, at, command, syntax)
  while words[at] do
    local option = upper(words[at])
    if rule[option] then
      break
    elseif option == 'COST' or option == 'HOLD' or option == 'FORCE' or option == 'ANCHORED' then
      if not find(syntax, '[' .. option, 1, true) or option == 'HOLD' and command == 'refund' then
        break
      elseif option == 'HOLD' then
        rule.holder, rule.lease = words[at + 1], words[at + 2] or bad_words(command, syntax)
        if #rule.holder < 1 or #rule.holder > 256 then
          fail('ERR holder must be 1 to 256 bytes long')
        end
        rule.lease = window_of(rule.lease, 'leaseSec')
        at = at + 2
      elseif option == 'COST' then
        at = at + 1
        local least = (command == 'peek' or command == 'all') and 0 or 1
        rule.cost = within(words[at] or bad_words(command, syntax), least, MOST)
          or fail(least == 1 and BAD_COST or 'ERR COST must be an integer from 0 to 9007199254740991')
      end
    elseif option == 'WITHIN' and find(syntax, 'WITHIN ms]', 1, true)
      and not (command == 'all' or command == 'refund' or command == 'settle') then
      at = at + 1
      rule.within = wait_of(words[at] or bad_words(command, syntax))
    elseif option == 'AT' and command == 'refund' then
      at = at + 1
      rule.at = within(words[at] or bad_words(command, syntax), 0, MOST) or fail(BAD_AT)
    elseif option == 'ACTUAL' and command == 'settle' then
      at = at + 1
      rule.actual = within(words[at] or bad_words(command, syntax), 0, MOST)
        or fail('ERR ACTUAL must be an integer from 0 to 9007199254740991')
    elseif (option == 'FULL' or option == 'EACH' and (command == 'peek' or find(syntax, '| EACH]', 1, true)))
      and command ~= 'all' and command ~= 'refund' and command ~= 'settle' and not rule.FULL and not rule.EACH then
      -- How much the reply shows.
    else
      break
    end
    rule[option] = true
    at = at + 1
  end
  if words[at] and command ~= 'all' then
    bad_words(command, syntax)
  end
  return at
end

-- Whether windows are in increasing order: those that end at a time come last.
local function is_longer(window, last)
  return last < 0 and window < last or last >= 0 and (window < 0 or window > last)
end

-- `windowSec limit [windowSec limit ...]` and options.
local quotas_and_options = ONLY ~= 'throttle' and ONLY ~= 'acquire' and function(words, at, command, syntax)
  local rule = {windows = {}, limits = {}, cost = 1}
  local count = 0
  repeat
    if not (words[at] and words[at + 1]) then
      fail(format(WRONG_ARITY, command))
    end
    local window = window_of(words[at])
    local limit = within(words[at + 1], 0, MOST) or fail(BAD_LIMIT)
    if count > 0 and not is_longer(window, rule.windows[count]) then
      fail(NOT_INCREASING)
    elseif count == MOST_WINDOWS then
      fail('ERR windowSec and limit can be given for at most 16 windows')
    end
    count = count + 1
    rule.windows[count], rule.limits[count] = window, limit
    at = at + 2
  until not (words[at] and find(words[at], LIKE_A_WINDOW))
  rule.count, rule.longest = count, rule.windows[count]

  at = options(rule, words, at, command, syntax)
  if rule.HOLD and rule.cost == 0 then
    fail(BAD_COST)
  elseif rule.WITHIN and (rule.FORCE or rule.HOLD) then
    fail('ERR WITHIN takes neither FORCE nor HOLD')
  end
  rule.needed = max(1, rule.cost) -- COST 0 asks whether there is room for a unit.
  return rule, at
end
