-- Decides by one rule about one key. The reply is made before anything is written: its waits are computed from what is stored.
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
