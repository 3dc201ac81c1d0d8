-- The list of rules, with the words that src/command declares. tests/live/functions holds the two together.

local BAD_COMMAND = 'ERR the first word must be sliding, fixed, throttle, acquire, peek, reset, release, all, refund or settle'
local BAD_RULE = 'ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE'
local NOT_REFUNDABLE = 'ERR rule must be SLIDING, FIXED or THROTTLE'
local SLIDING_SYNTAX = 'SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]'
local FIXED_SYNTAX = 'FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]'
local THROTTLE_SYNTAX = 'THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL]'
local ACQUIRE_SYNTAX = 'ACQUIRE limit leaseSec holder [FULL]'

-- How many words each of the other commands has at least, without its key.
local LEAST_WORDS = {peek = 3, reset = 0, release = 1, all = 4, refund = 3, settle = 5}

local make_sliding = (not ONLY or ONLY == 'sliding') and function()
  local sliding = nil
  include 'command/sliding'
  return sliding
end

local make_fixed = (not ONLY or ONLY == 'fixed') and function()
  local fixed = nil
  include 'command/fixed'
  return fixed
end

local make_throttle = (not ONLY or ONLY == 'throttle') and function()
  local throttle = nil
  include 'command/throttle'
  return throttle
end

local make_acquire = (not ONLY or ONLY == 'acquire') and function()
  local acquire = nil
  include 'command/acquire'
  return acquire
end

local rules = {}

-- The rule of this name. Nothing for a word that is not the name of a rule.
local function rule_of(name)
  local rule = rules[name]
  if not rule then
    local make = name == 'SLIDING' and make_sliding
      or name == 'FIXED' and make_fixed
      or name == 'THROTTLE' and make_throttle
      or name == 'ACQUIRE' and make_acquire
      or nil
    rule = make and make()
    rules[name] = rule
  end
  return rule
end
