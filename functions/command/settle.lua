-- `rule ACTUAL n`: makes n units of what a holder has counted, once. The difference is given back as RL.REFUND does it, or counted with
-- FORCE.
local settle = HELD and not DIRECT and function(kind, words, at, key, declared)
  local rule = kind.parse(words, at, 'settle')
  if not rule.HOLD then
    fail('ERR RL.SETTLE takes a rule with HOLD')
  elseif not rule.actual then
    bad_words('settle', kind.syntax)
  end
  rule.COST = true -- What is settled is a cost, also without that word.
  kind.complete()
  local now = clock()
  local holds = (held or make_held()).read(rule, key, now, declared)
  local own = holds.own -- Giving back what has ended changes nothing of this.
  local settled = own and 1 or 2
  local difference = rule.actual - (own and own.units or 0)
  if own and own.is_settled then
    settled, difference = difference == 0 and 3 or 0, 0
  end

  local function read()
    return kind.read(rule, key, now, nil, nil, declared, false, true)
  end

  -- Plans what is counted. What is given back is not planned, but done at once.
  local function charged()
    rule.cost, rule.needed, rule.FORCE = math.abs(difference), max(1, math.abs(difference)), true
    local state = read()
    if difference >= 0 then
      kind.verdict(rule, state)
      kind.decide(rule, state, true, true)
    end
    if difference > 0 and kind.plan then
      kind.plan(state)
    end
    return state
  end

  if holds.has_ended then
    -- What refuses the settlement does so before anything is given back.
    local whole = budget
    budget = new_budget('full')
    local state = charged()
    if difference < 0 and kind.plan then
      state.store.refund(state.log, rule.cost, own.at, 'full')
    end
    budget = whole
    held.give_back(kind, key, holds, held.find_ended(kind, rule, key, holds, declared), declared)
    holds = held.read(rule, key, now, declared)
  end
  local state = charged()
  if not (own and own.is_settled) then
    if not own then
      held.check_room(holds)
    end
    if difference > 0 then
      kind.apply(rule, state)
    elseif difference < 0 then
      rule.at = own.at
      held.check_memory(rule, holds)
      kind.refund(rule, state)
    end
    held.settle(rule, holds, rule.actual)
  end
  -- What is left in the first window, and its seconds.
  if difference ~= 0 then
    rule.cost, rule.needed = 0, 1
    state = read()
    kind.verdict(rule, state)
    kind.decide(rule, state, false, true)
  end
  state.binding = state.quotas[1]
  local reply = kind.reply(rule, state)
  reply[1] = settled
  return reply
end
