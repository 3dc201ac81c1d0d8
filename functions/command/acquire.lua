-- `limit leaseSec holder [FULL]`: at most `limit` holders at a time.

include 'state/lease'
include 'limit/lease'

local function parse(words, at, command)
  if not (words[at] and words[at + 1] and words[at + 2]) then
    fail(format(WRONG_ARITY, command))
  end
  local rule = {limit = within(words[at], 0, MOST) or fail(BAD_LIMIT)}
  rule.lease, rule.holder = window_of(words[at + 1], 'leaseSec'), words[at + 2]
  return rule, options(rule, words, at + 3, command, ACQUIRE_SYNTAX)
end

local function reply(rule, leases)
  return {leases.allowed and 1 or 0, leases.held_after, ceil(rule.lease / 1000)}
end

acquire = {
  syntax = ACQUIRE_SYNTAX, parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
  set_missing_expiry = set_missing_expiry, release = release, complete = complete,
}
