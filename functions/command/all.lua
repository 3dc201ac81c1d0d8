-- `numkeys key [key ...] rule [rule ...] [WITHIN ms] [FULL]`: one decision over several keys, each with a rule of its own. All keys are read
-- before a rule decides, and all rules decide before a key is written. If one of them denies, no request is counted.

-- Whether a/b is less than c/d, exactly: no number is above 2^53, but a product of two may be.
local function is_less(a, b, c, d)
  while true do
    local left, right = math.fmod(a, b), math.fmod(c, d)
    local whole, other = (a - left) / b, (c - right) / d
    if whole ~= other then
      return whole < other
    elseif left == 0 or right == 0 then
      return left == 0 and right ~= 0
    end
    -- left/b < right/d if and only if d/right < b/left.
    a, b, c, d = d, right, b, left
  end
end

local BAD_ALL = 'ERR syntax error: expected one rule a key [WITHIN ms] [FULL]'

-- The counters that are declared after the keys of the rules, if there is nothing else.
local function declared_behind(keys, parts)
  local declared = {}
  for index = #parts + 1, #keys do
    local name, belongs = keys[index], false
    for place = 1, #parts do
      local key = parts[place].key
      local suffix = sub(name, 1, #key + 1) == key .. ':' and sub(name, #key + 2)
        or sub(name, 1, #key + 3) == '{' .. key .. '}:' and sub(name, #key + 4)
      belongs = belongs or parts[place].kind.has_counters and suffix and find(suffix, '^@?%d[%d.]*s?$')
        or parts[place].rule.HOLD and suffix == 'held'
    end
    if not belongs then
      return nil
    end
    declared[name] = true
  end
  return declared
end

-- Refuses rules of which one would count in the state of another.
local function check_apart(parts)
  local taken = {}
  local function take(name)
    if taken[name] then
      fail('ERR two rules of RL.ALL would share a counter')
    end
    taken[name] = true
  end
  for index = 1, #parts do
    local part = parts[index]
    local counters = part.kind.has_counters and part.state.quotas
    for place = 1, counters and #counters or 1 do
      take(counters and counters[place].name or part.key)
    end
    if part.holds then
      take(part.holds.name)
    end
  end
end

-- Plans what all rules store. What bounds one call bounds all of them together; stale members that are more than the call may still
-- remove are left to later calls.
local function plan_together(parts)
  for index = 1, #parts do
    local part = parts[index]
    local kind, state = part.kind, part.state
    if kind.plan then
      kind.plan(state)
    end
    local set = state.log or state
    local stale = max(set.expired or set.ended or 0, set.ahead or 0)
    stale = (set.units or set.held) == 0 and 0 or min(stale, MOST_REMOVED)
    set.keeps_stale = stale > budget.removed
    budget.removed = set.keeps_stale and budget.removed or budget.removed - stale
    if part.holds and part.counts then
      held.check_room(part.holds)
    end
  end
end

-- The rules with their keys, whether the reply is FULL, for how long the call may wait, and the counters that are declared.
local function parse(keys, words, at)
  if #keys < 1 or #keys > 64 then
    fail('ERR numkeys must be an integer from 1 to 64')
  elseif #keys + #words - at + 1 < 4 then
    fail(format(WRONG_ARITY, 'all'))
  end
  local parts, taken = {}, {}
  for index = 1, #keys do
    if taken[keys[index]] then
      fail('ERR RL.ALL takes each key once')
    end
    taken[keys[index]] = true
  end
  while #parts < #keys and words[at] do
    local kind = rule_of(upper(words[at]))
    if not kind then
      if #parts > 0 and declared_behind(keys, parts) then
        break
      end
      fail(BAD_RULE)
    end
    kind.complete()
    local rule, behind = kind.parse(words, at + 1, 'all')
    parts[#parts + 1] = {kind = kind, rule = rule, key = keys[#parts + 1]}
    at = behind
  end
  local full, within_ms = false, nil
  local declared = #parts < #keys and declared_behind(keys, parts)
  while words[at] do
    local option = upper(words[at])
    if option == 'FULL' and not full then
      full = true
    elseif option == 'WITHIN' and not within_ms then
      at = at + 1
      within_ms = wait_of(words[at] or fail(BAD_ALL))
    elseif rule_of(option) then
      fail(BAD_ALL)
    else
      bad_words('all', parts[#parts].kind.syntax)
    end
    at = at + 1
  end
  if #parts < #keys and not declared then
    fail(BAD_ALL)
  end
  for index = 1, within_ms and #parts or 0 do
    local rule = parts[index].rule
    if not parts[index].kind.outlook or rule.FORCE or rule.HOLD then
      fail('ERR RL.ALL takes WITHIN where every rule is SLIDING, and none has FORCE or HOLD')
    end
  end
  return parts, full, within_ms, declared
end

-- Reads the keys of all rules. Returns whether something has ended that was held there.
local function read_all(parts, now, seconds, nanos, declared)
  local has_ended = false
  for index = 1, #parts do
    local part = parts[index]
    part.state = part.kind.read(part.rule, part.key, now, seconds, nanos, declared, false)
    if part.rule.HOLD then
      part.holds = (held or make_held()).open(part.rule, part.key, now, declared)
      has_ended = has_ended or part.holds.has_ended
    end
  end
  return has_ended
end

-- The turn of rules that do not all have room now: the first time with room for all. Without such a time: which of them deny, and until
-- when.
local function wait(parts, within_ms)
  local now, room, place, counts = parts[1].state.now, parts[1].state.now, 0, false
  for index = 1, #parts do
    local part = parts[index]
    part.room, part.place = part.kind.outlook(part.rule, part.state)
    room = room and part.room and max(room, part.room)
    place, counts = max(place, part.place), counts or part.rule.cost > 0
  end
  -- Where one has room another may have none again.
  local last = nil
  while room and room ~= last do
    last = room
    for index = 1, #parts do
      room = room and parts[index].kind.first_room(parts[index].rule, parts[index].state, room)
    end
  end
  within_ms = counts and within_ms or 0 -- Checks alone wait for nothing.
  local late, any_denies, longest = parts[1].kind.retry_within(room, place, within_ms, now), false, 0
  for index = 1, #parts do
    local part = parts[index]
    local own = part.kind.retry_within(part.room, part.place, 0, now)
    part.late, part.alone = part.kind.retry_within(part.room, part.place, within_ms, now), own < 0 and math.huge or own
    any_denies, longest = any_denies or part.late ~= 0, max(longest, part.alone)
  end
  for index = 1, #parts do
    local part = parts[index]
    part.denies = false
    if late == 0 then
      part.kind.take(part.rule, part.state, room)
    else
      -- Where each would have a turn by itself, the last of them has none.
      part.state.late = not any_denies and part.alone == longest and late or part.late
      part.denies, part.state.within = part.state.late ~= 0, within_ms
      part.state.allowed = not part.denies
    end
  end
  return late
end

all = function(keys, words, at)
  local parts, full, within_ms, declared = parse(keys, words, at)
  local now, seconds, nanos = clock()
  local has_ended = read_all(parts, now, seconds, nanos, declared)
  check_apart(parts)
  for index = 1, #parts do
    -- The one compaction is for a log that takes nothing otherwise.
    local state = parts[index].state
    if state.log and state.store.is_compact and state.store.is_nearly_full(state.log) then
      budget.compaction = 'full'
    end
  end
  -- Where each holder has its hold the call was carried out before. It counts nothing again.
  local is_known = nil
  for index = 1, #parts do
    local part = parts[index]
    if part.holds then
      is_known = is_known ~= false and part.holds.own ~= nil
    end
  end
  local added = 0 -- To sorted sets.
  for index = 1, is_known and 0 or #parts do
    local part = parts[index]
    local counts = part.kind.plan and not part.state.store.is_compact and not (part.holds and part.holds.own)
    added = added + (counts and part.rule.cost or 0)
  end
  if added > MOST_ADDED then
    fail(COST_TOO_LARGE)
  end
  if has_ended then
    local own = budget
    budget = new_budget('full')
    for index = 1, #parts do
      local part = parts[index]
      local counts = not (is_known or part.holds and part.holds.own)
      check_first(part.kind, part.rule, part.state, full, false, counts)
    end
    budget = own
    local ended = {} -- All of it is known before any is given back.
    for index = 1, #parts do
      local part = parts[index]
      ended[index] = part.holds and held.find_ended(part.kind, part.rule, part.key, part.holds, declared)
    end
    for index = 1, #parts do
      if ended[index] then
        held.give_back(parts[index].kind, parts[index].key, parts[index].holds, ended[index], declared)
      end
    end
    read_all(parts, now, seconds, nanos, declared)
  end
  local allowed = true
  for index = 1, #parts do
    local part = parts[index]
    part.kind.verdict(part.rule, part.state)
    if is_known or part.holds and part.holds.own then
      part.state.is_held = true
    end
    part.state.shows_wait = within_ms ~= nil
    part.denies = not (part.state.allowed or part.rule.FORCE or part.state.is_held)
    allowed = allowed and not part.denies
  end
  local late = within_ms and not allowed and wait(parts, within_ms)
  allowed = allowed or late == 0
  local binding, longest, left, limit, maps = nil, 0, nil, nil, {}
  for index = 1, #parts do
    local part = parts[index]
    local kind, rule, state = part.kind, part.rule, part.state
    part.counts = allowed and (not state.is_held or kind.release ~= nil) -- Leases are renewed.
    kind.decide(rule, state, part.counts)
    if full then
      maps[index] = maps_of(kind, rule, state, false)[1]
    end
    local remaining, share_of = max(0, state.binding.limit - state.binding.used), max(1, state.binding.limit)
    if allowed then
      if not binding or is_less(remaining, share_of, left, limit) then
        binding, left, limit = index, remaining, share_of
      end
    elseif part.denies then
      local wait = kind.retry(rule, state)
      wait = wait < 0 and math.huge or wait
      if not binding or wait > longest then
        binding, longest, left = index, wait, remaining
      end
    end
  end
  if allowed then
    plan_together(parts)
  end
  for index = 1, #parts do
    local part = parts[index]
    local change = allowed and part.kind.apply or part.kind.set_missing_expiry
    if change then
      change(part.rule, part.state)
    end
    if allowed and part.holds then
      held.apply(part.rule, part.holds, part.counts)
    end
  end
  local retry = not allowed and late or longest
  local reply = {allowed and 1 or 0, binding - 1, left, retry == math.huge and -1 or retry}
  reply[#reply + 1] = within_ms and (parts[1].state.turn_in or 0)
  reply[#reply + 1] = full and maps or nil
  return reply
end
