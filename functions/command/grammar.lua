-- The grammar of the rules, and the errors for words that do not follow it. `command` is where a rule is given: a rule's own command,
-- peek, refund or all.

local BAD_RULE = 'ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE'
local BAD_AT = 'ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991'

-- A word like this is meant as a number, in or out of range. All other words are meant as options.
local LIKE_A_NUMBER = '^[%d+.-]'

-- Refuses words that do not belong to a rule.
local function bad_words(command, name)
  if command == 'all' then
    fail('ERR syntax error: expected one rule a key and then FULL')
  elseif command == 'refund' then
    fail('ERR syntax error: expected a rule and AT ms')
  elseif name == 'FIXED' then
    fail('ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH')
  elseif name == 'SLIDING' then
    fail('ERR syntax error: expected windowSec limit, COST n, FORCE, FULL or EACH')
  end
  local words = name == 'THROTTLE' and 'max_burst count period, quantity' or 'limit leaseSec holder'
  if command == 'peek' then
    fail('ERR syntax error: expected ' .. words .. ', FULL or EACH')
  end
  fail('ERR syntax error: expected ' .. words .. ' and FULL')
end

-- Reads the options of a rule into it, in any order and each once, and returns where they end: in RL.ALL at the next rule, elsewhere
-- with the call. `takes`: the options that this rule takes, beside those that every rule may have.
local function options(rule, words, at, command, name, takes)
  local seen = {}
  while words[at] do
    local option = upper(words[at])
    if seen[option] then
      break
    elseif takes and takes[option] then
      if option == 'COST' then
        at = at + 1
        local least = (command == 'peek' or command == 'all') and 0 or 1
        rule.cost = within(words[at] or bad_words(command, name), least, MOST)
          or fail(least == 1 and BAD_COST or 'ERR COST must be an integer from 0 to 9007199254740991')
      end
    elseif option == 'AT' and command == 'refund' then
      at = at + 1
      rule.at = within(words[at] or bad_words(command, name), 0, MOST) or fail(BAD_AT)
    elseif command ~= 'all' and command ~= 'refund' and not seen.FULL and not seen.EACH
      and (option == 'FULL' or option == 'EACH' and (takes or command == 'peek')) then
      rule.full, rule.each = option == 'FULL', option == 'EACH'
    else
      break
    end
    seen[option] = true
    at = at + 1
  end
  if words[at] and command ~= 'all' then
    bad_words(command, name)
  end
  return at, seen
end

-- `windowSec limit [windowSec limit ...]` and options.
local quotas_and_options = ONLY ~= 'throttle' and ONLY ~= 'acquire' and function(words, at, command, name, own)
  local rule = {windows = {}, limits = {}, cost = 1, refunds = command == 'refund'}
  local count = 0
  repeat
    if not (words[at] and words[at + 1]) then
      fail(format(WRONG_ARITY, command))
    end
    local window, limit = window_of(words[at], 'windowSec'), within(words[at + 1], 0, MOST) or fail(BAD_LIMIT)
    if count > 0 and window <= rule.windows[count] then
      fail(NOT_INCREASING)
    elseif count == MOST_WINDOWS then
      fail('ERR windowSec and limit can be given for at most 16 windows')
    end
    count = count + 1
    rule.windows[count], rule.limits[count] = window, limit
    at = at + 2
  until not (words[at] and find(words[at], LIKE_A_NUMBER))
  rule.count, rule.longest = count, rule.windows[count]

  local seen
  at, seen = options(rule, words, at, command, name, {COST = true, FORCE = true, [own or 'COST'] = true})
  rule.anchored, rule.force, rule.has_cost = seen.ANCHORED, seen.FORCE, seen.COST
  rule.needed = max(1, rule.cost) -- COST 0 asks whether there is room for a unit.
  return rule, at
end
