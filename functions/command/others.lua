-- The commands about one key that are not a rule's own.

local least_words = LEAST_WORDS

include 'command/reset'
include 'command/settle'

others = function(command, key, words, at, declared)
  local least = least_words[command]
  if not least then
    fail(BAD_COMMAND)
  elseif not key or #words - at + 1 < least then
    fail(format(WRONG_ARITY, command))
  elseif command == 'reset' then
    return reset(words, at, key, declared)
  elseif command == 'release' then
    return rule_of('ACQUIRE').release(words, at, key)
  end
  local kind = rule_of(upper(words[at]))
  if command == 'peek' then
    return decide(kind or fail(BAD_RULE), words, at + 1, 'peek', key, declared)
  elseif command == 'settle' then
    local is_holdable = kind and find(kind.syntax, '[HOLD', 1, true)
    return settle(is_holdable and kind or fail('ERR rule must be SLIDING or FIXED'), words, at + 1, key, declared)
  end
  if kind then
    kind.complete()
  end
  -- Leases are released, not refunded.
  local refund = kind and kind.refund or fail(NOT_REFUNDABLE)
  local rule = kind.parse(words, at + 1, 'refund')
  local now, seconds, nanos = clock()
  return refund(rule, kind.read(rule, key, now, seconds, nanos, declared, false, true))
end
