-- The commands in all their forms.

local ceil, max, min, sub, lower, upper = math.ceil, math.max, math.min, string.sub, string.lower, string.upper

local MOST_LOOKUPS = 1024
local MOST_WORK = 1000

-- What a call may still do, in all of its keys, rules and windows: `lookups` into windows for the ends of waits, `work` on holds that
-- have ended, stale members that are `removed` from sorted sets, and one `compaction` of a log: where it is 'due', or where the log is
-- 'full' and takes nothing otherwise.
local budget = nil

local function new_budget(compaction)
  return {lookups = MOST_LOOKUPS, work = MOST_WORK, removed = MOST_REMOVED, compaction = compaction}
end

include 'command/grammar'
include 'state/mod'
include 'limit/mod'

-- The holds of a key, which only some calls have.
local held = nil

local make_held = HELD and function()
  include 'state/hold'
  return held
end

include 'command/rules'
include 'command/reply'
include 'command/rule'

local others = nil

local make_others = not DIRECT and function()
  include 'command/others'
  return others
end

local all = nil

local make_all = not ONLY and function()
  include 'command/all'
  return all
end

run = function(command, keys, words, at, declared)
  budget = new_budget('due')
  if command == 'all' then
    return (all or make_all())(keys, words, at)
  end
  local kind = rule_of(upper(command))
  if not kind then
    return (others or make_others())(command, keys[1], words, at, declared)
  elseif not keys[1] then
    fail(format(WRONG_ARITY, command))
  end
  return decide(kind, words, at, command, keys[1], declared)
end
