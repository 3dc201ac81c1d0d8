-- `windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [FORCE] [FULL | EACH]`: one counter per window.

include 'limit/fixed'
include 'state/fixed'

local function parse(words, at, command)
  local rule, behind = quotas_and_options(words, at, command, FIXED_SYNTAX)
  if rule.ANCHORED and rule.longest < 0 then
    fail('ERR ANCHORED takes no @ms')
  end
  rule.counts = rule.FORCE or rule.cost == 1 and rule.count == 1 and not rule.HOLD -- The plain form counts its denials.
  return rule, behind
end

local function reply(_, state)
  local quota = state.binding
  local left = max(0, (quota.ends or quota.expiry_after or state.now + quota.life) - state.now)
  return {state.allowed and 1 or 0, quota.used, floor((left + 500) / 1000)} -- Rounded as the TTL command does it.
end

fixed = {
  syntax = FIXED_SYNTAX, parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
  set_missing_expiry = set_missing_expiry, has_counters = true, suffix_of = suffix_of, complete = complete,
}
