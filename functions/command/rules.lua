-- The rules. Each is a table of these functions:
--
-- parse(words, at, command)          the rule that begins at words[at], and where it ends
-- read(rule, key, time, declared)    a state: what is stored; changes nothing
-- verdict(rule, state)               whether the request is `allowed`
-- decide(rule, state, counts, is_short)  updates the state to that after a call that may count, or may not.
--                                    `is_short`: whether the reply shows no wait
-- plan(state, may_compact)           whether what was decided can be stored; only where that is not certain
-- reply(rule, state)                 the short reply
-- apply(rule, state)                 writes what was decided, and drops what has expired
-- complete()                         adds the functions below, if they are not there yet
--
-- retry(rule, state)                 until the request fits, in ms; -1 for never
-- statuses(rule, state, each)        the status of the binding window, or of each
-- set_missing_expiry(rule, state)    gives an expiry to a key that lacks one, where nothing else changes
-- refund(rule, state)                takes back what was counted, and returns the reply
-- counters(rule, key, now, declared) the keys that it uses in place of the one in the call

local rules = {}

-- The rule of this name. Nothing for a word that is not the name of a rule.
local function rule_of(name)
  local kind = rules[name]
  if not kind then
    local make = maker_of(name)
    kind = make and make()
    rules[name] = kind
  end
  return kind
end
