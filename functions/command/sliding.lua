-- `windowSec limit [windowSec limit ...] [COST n] [WITHIN ms] [FORCE] [FULL | EACH]`: an exact sliding window.

include 'limit/sliding'

local function parse(words, at, command)
  local rule, behind = quotas_and_options(words, at, command, SLIDING_SYNTAX)
  if rule.longest < 0 then
    fail(format(BAD_SECONDS, 'windowSec'))
  end
  rule.counts = rule.FORCE
  return rule, behind
end

local function read(rule, key, now, _, _, _, prunes)
  local log, store = (open_log or make_logs())(key, rule.longest, now, rule.COST, prunes and rule.cost <= MOST_ADDED)
  if store.complete and (sliding.statuses or rule.count > 1 or rule.FULL or rule.EACH or rule.WITHIN) then
    store.complete()
  end
  return {log = log, store = store, now = now, added = 0}
end

local function plan(state)
  state.store.plan(state.log, state.added, budget.compaction)
  budget.compaction = not state.log.is_compacted and budget.compaction
end

local function reply(rule, state)
  local binding = state.binding
  return {state.allowed and 1 or 0, binding.before, ceil(binding.window / 1000), rule.WITHIN and (state.turn_in or 0)}
end

local function apply(_, state)
  state.store.apply(state.log, true)
end

-- A key without an expiry gets one, also if nothing else changes.
local set_missing_expiry = not ONLY and function(_, state)
  local log = state.log
  if log.units > 0 and not expiry_of(log.key, log.now) then
    local newest = log.beyond > 0 and state.store.newest_stamp(log) or 0
    call('PEXPIREAT', log.key, max(log.now + log.window, newest) + log.window)
  end
end

sliding = {
  syntax = SLIDING_SYNTAX, parse = parse, read = read, verdict = verdict, decide = decide, plan = plan, reply = reply,
  apply = apply, set_missing_expiry = set_missing_expiry, complete = complete,
}
