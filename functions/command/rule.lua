-- What a rule is, and the command that decides by one rule about one key. A rule is a table of these functions:
--
-- parse(words, at, command)          the rule that begins at words[at], and where it ends
-- read(rule, key, time, declared, prunes, may_have_ended)  a state: what is stored; changes nothing, unless it `prunes`.
--                                    `may_have_ended`: whether `@ms` may be over
-- verdict(rule, state)               whether the request is `allowed`
-- decide(rule, state, counts, is_short)  updates the state to that after a call that may count, or may not.
--                                    `is_short`: whether the reply shows no wait
-- plan(state)                        plans to store what was decided; only where it is not certain that it can be
-- reply(rule, state)                 the short reply
-- apply(rule, state)                 writes what was decided, and drops what has expired
-- complete()                         adds the functions below, if they are not there yet
--
-- retry(rule, state)                 until the request fits, in ms; -1 for never
-- statuses(rule, state, each)        the status of the binding window, or of each
-- set_missing_expiry(rule, state)    gives an expiry to a key that lacks one, where nothing else changes
-- refund(rule, state)                takes back what was counted, and returns the reply
-- leave_out(rule, state)             leaves out of a state what a refund by another rule would take back; where there are holds
-- has_counters                       whether its quotas have keys of their own, each with a `name`, in place of the one in the call

-- Refuses what could not be counted, as the keys are, before anything is given back. The state is not used after that, and the budget
-- is one of its own. `counts`: whether the call is one that counts.
local check_first = HELD and function(kind, rule, state, full, each, counts)
  kind.complete()
  kind.verdict(rule, state)
  kind.decide(rule, state, counts and (state.allowed or rule.counts))
  if full or each then
    maps_of(kind, rule, state, each)
  end
  if kind.plan and state.added > 0 then
    kind.plan(state)
  end
end

-- The reply is made before anything is written: its waits are computed from what is stored.
local function decide(kind, words, at, command, key, declared)
  local rule = kind.parse(words, at, command)
  local writes = command ~= 'peek'
  local now, seconds, nanos = clock()
  local state = kind.read(rule, key, now, seconds, nanos, declared, writes and not rule.HOLD)
  local holds = rule.HOLD and (held or make_held()).open(rule, key, now, declared)
  if holds and holds.has_ended then
    if writes then
      local own = budget
      budget = new_budget('full')
      check_first(kind, rule, state, rule.FULL, rule.EACH, not holds.own)
      budget = own
    end
    local ended = held.find_ended(kind, rule, key, holds, declared)
    if writes then
      held.give_back(kind, key, holds, ended, declared)
      state, holds = kind.read(rule, key, now, seconds, nanos, declared, false), held.open(rule, key, now, declared)
    else
      held.leave_out(kind, holds, ended, state)
    end
  end
  kind.verdict(rule, state)
  local counts = state.allowed or rule.counts
  if holds and holds.own then
    counts, state.is_held = false, true -- The request was counted before, and allowed.
  end
  kind.decide(rule, state, counts, not (rule.FULL or rule.EACH))
  -- A peek plans what it would add as well: a log that cannot take the units refuses it like the call.
  if kind.plan and (writes or state.added > 0) then
    budget.compaction = writes and budget.compaction or 'full'
    kind.plan(state)
  end
  if holds and counts then
    held.check_room(holds)
  end
  local reply
  if rule.EACH then
    reply = maps_of(kind, rule, state, true)
  elseif rule.FULL then
    reply = maps_of(kind, rule, state, false)[1]
  else
    reply = kind.reply(rule, state)
    reply[1] = state.is_held and 1 or reply[1]
  end
  if writes then
    kind.apply(rule, state)
    if holds then
      held.apply(rule, holds, counts)
    end
  end
  return reply
end
