-- `max_burst count period [quantity] [WITHIN ms] [FULL]`: a steady rate with a burst.

include 'limit/throttle'
include 'state/throttle'

local function parse(words, at, command)
  if not (words[at] and words[at + 1] and words[at + 2]) then
    fail(format(WRONG_ARITY, command))
  end
  local burst = within(words[at], 0, MOST - 1)
    or fail('ERR max_burst must be an integer from 0 to 9007199254740990')
  local count = within(words[at + 1], 1, MOST) or fail('ERR count must be an integer from 1 to 9007199254740991')
  local period = within(words[at + 2], 1, MOST_SECONDS)
    or fail('ERR period must be an integer number of seconds from 1 to 2147483647')
  local rule = {limit = burst + 1, quantity = 1}
  at = at + 3
  local word = words[at]
  if word and find(word, LIKE_A_NUMBER) then
    rule.quantity = within(word, 0, MOST) or fail('ERR quantity must be an integer from 0 to 9007199254740991')
    at = at + 1
  end
  at = options(rule, words, at, command, THROTTLE_SYNTAX)
  rule.seconds, rule.nanos = interval_of(period, count)
  if not rule.seconds then
    fail('ERR count must be at most one request a nanosecond of the period')
  end
  -- 2^62 nanoseconds.
  rule.tolerance_seconds, rule.tolerance_nanos = intervals(rule, rule.limit)
  if not rule.tolerance_seconds
    or not at_most(rule.tolerance_seconds, rule.tolerance_nanos, 4611686018, 427387904) then
    fail('ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill')
  end
  return rule, at
end

-- `[limited, limit, remaining, retry_after, reset_after]`, after WITHIN also `wait-ms`, with times in seconds, rounded up, as redis-cell replies.
local function reply(rule, state)
  return {
    state.allowed and 0 or 1, rule.limit, state.remaining,
    state.wait > 0 and ceil(state.wait / 1000) or -1,
    ceil(to_millis(state.ahead_seconds, state.ahead_nanos) / 1000),
    rule.WITHIN and (state.turn_in or 0),
  }
end

throttle = {
  syntax = THROTTLE_SYNTAX, parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
  complete = complete,
}
