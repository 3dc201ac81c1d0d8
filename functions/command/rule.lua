-- What a rule is, and the command that decides by one rule about one key. A rule is a table of these functions:
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

-- The reply is made before anything is written: its waits are computed from what is stored.
local function decide(kind, words, at, command, key, declared)
  local rule = kind.parse(words, at, command)
  local writes = command ~= 'peek'
  local now, seconds, nanos = clock()
  local state = kind.read(rule, key, now, seconds, nanos, declared, writes)
  kind.verdict(rule, state)
  kind.decide(rule, state, state.allowed or rule.counts, not (rule.FULL or rule.EACH))
  -- A peek plans what it would add as well: a log that cannot take the units refuses it like the call.
  if kind.plan and (writes or state.added > 0) then
    kind.plan(state, true)
  end
  local reply
  if rule.EACH then
    reply = maps_of(kind, rule, state, true)
  elseif rule.FULL then
    reply = maps_of(kind, rule, state, false)[1]
  else
    reply = kind.reply(rule, state)
  end
  if writes then
    kind.apply(rule, state)
  end
  return reply
end
