-- Holds: who has counted how many units, and when, in a sorted set at `key:held`. A holder has two members there:
--
-- e<holder>                    its score: when the hold ends, or until when a settled holder is remembered
-- h<units><at>[@<ms>] <holder>  a hold: its units, when they were counted, and in which windows that end at a time
-- s<holder>                    a settled holder, in place of the note; its score: -1 - ACTUAL
--
-- Numbers have 16 digits. The score of a note is above all times and made of the holder's bytes, by which it is found. The module
-- has the same members and scores; src/state/hold/note.rs describes them in prose.

local END_OF_TIMES = 1125899906842624 -- 2^50: the scores of notes are not below it, those of times are.
local MOST_HOLDERS = 1048576
local REMEMBERED = 60000 -- That a holder has settled is known for this time at least.
local MOST_LATE = 3600000 -- The key may outlive what is in it by this time.
local WORK_OF_REWRITING = 250 -- Of a compact log, whose end is written anew.

local function score_of(holder)
  local hash = 0
  for index = 1, #holder do
    hash = (hash * 31 + string.byte(holder, index)) % 281474976710656
  end
  return format('%.0f', END_OF_TIMES + hash)
end

-- What a member says of a holder, if it is a note about it.
local function parse(member, holder)
  local head, ends, place = sub(member, 1, 33), {}, 34
  local piece = sub(member, place, place + 16)
  while #piece == 17 and find(piece, '^@%d+$') do
    ends[#ends + 1], place = tonumber(sub(piece, 2)), place + 17
    piece = sub(member, place, place + 16)
  end
  local units = #head == 33 and find(head, '^h%d+$') and tonumber(sub(head, 2, 17))
  local at = units and tonumber(sub(head, 18))
  if units and units <= MOST and at < END_OF_TIMES and sub(member, place) == ' ' .. holder then
    return {holder = holder, member = member, units = units, at = at, ends = ends}
  end
end

-- What is written down about a holder that has this end.
local function note_of(holds, holder, ends)
  if tonumber(ends) <= 0 or tonumber(ends) >= END_OF_TIMES then
    fail(WRONG_TYPE)
  end
  local score = score_of(holder)
  local members = call('ZRANGEBYSCORE', holds.name, score, score)
  for index = 1, #members do
    local note = parse(members[index], holder)
    if note then
      return note
    end
  end
  local units = -1 - tonumber(call('ZSCORE', holds.name, 's' .. holder) or 0)
  if units < 0 or units > MOST or units % 1 ~= 0 then
    fail(WRONG_TYPE)
  end
  return {holder = holder, member = 's' .. holder, units = units, is_settled = true}
end

-- Reads the holds of a key: the note of the holder, also if its hold has ended, and whether anything `has_ended`.
local function read(rule, key, now, declared)
  local holds = {name = counter_name(key, 'held', declared), now = now, has_ended = false}
  holds.members = call('ZCARD', holds.name)
  if holds.members == 0 then
    check_missing(key, holds.name, declared)
    return holds
  end
  local score = call('ZSCORE', holds.name, 'e' .. rule.holder)
  if score then
    holds.note, holds.ends = note_of(holds, rule.holder, score), ceil(tonumber(score))
    holds.own = holds.ends > now and holds.note or nil
  end
  holds.has_ended = #call('ZRANGEBYSCORE', holds.name, '(0', now, 'LIMIT', 0, 1) > 0
  return holds
end

-- Reads them for a request: `own` is the hold of its holder, which counted it before.
local function open(rule, key, now, declared)
  local holds = read(rule, key, now, declared)
  if holds.own and holds.own.is_settled then
    fail('ERR this hold is settled: a new request takes a new holder')
  elseif holds.own and holds.own.units ~= rule.cost then
    fail('ERR the hold of this holder has another COST')
  end
  return holds
end

-- The rule by which a hold is given back: of windows that end at a time, those in which it was counted.
local function refund_of(rule, note)
  local refund = {windows = {}, limits = {}, count = 0, cost = note.units, needed = max(1, note.units), at = note.at}
  refund.COST, refund.ANCHORED = rule.COST, rule.ANCHORED
  for index = 1, rule.count do
    local window, is_named = rule.windows[index], false
    for place = 1, window < 0 and #note.ends or 0 do
      is_named = is_named or note.ends[place] == -1 - window
    end
    if window >= 0 or is_named then
      refund.count = refund.count + 1
      refund.windows[refund.count], refund.limits[refund.count] = window, rule.limits[index]
    end
  end
  refund.longest = refund.windows[refund.count]
  return refund
end

-- The notes of what has ended at a key, each with the `refund` that gives it back, if anything can. The first of a call and the hold of
-- its own holder are given back in any case, others as far as the budget of the call goes. What damage of a log would refuse is refused
-- here, before anything is written.
local function find_ended(kind, rule, key, holds, declared)
  local notes, own, ended = {}, nil, {}
  local members = call('ZRANGEBYSCORE', holds.name, '(0', holds.now, 'LIMIT', 0, budget.work) -- Each takes some work.
  for index = 1, #members do
    local holder = sub(members[index], 2)
    if holder ~= rule.holder then
      notes[#notes + 1] = sub(members[index], 1, 1) == 'e' and note_of(holds, holder, holds.now) or fail(WRONG_TYPE)
    end
  end
  if holds.note and not holds.own then
    own = holds.note
    table.insert(notes, 1, own)
  end
  kind.complete()
  local is_set = kind.plan and call('TYPE', key).ok == 'zset'
  for index = 1, #notes do
    local note, cost = notes[index], 1
    local refund = not note.is_settled and refund_of(rule, note)
    if refund and is_set then
      cost, refund.cost = max(1, note.units), min(note.units, MOST_ADDED)
    elseif refund then
      cost = kind.plan and WORK_OF_REWRITING or rule.count
    end
    if note ~= own and budget.work < MOST_WORK and cost > budget.work then
      break
    end
    budget.work = max(0, budget.work - cost)
    if refund and kind.plan and not is_set then
      local state = kind.read(refund, key, holds.now)
      state.store.refund(state.log, refund.cost, note.at, 'full')
    end
    note.refund = refund and refund.count > 0 and refund
    ended[index] = note
  end
  return ended
end

-- Gives back what has ended, as RL.REFUND with the time at which it was counted.
local function give_back(kind, key, holds, ended, declared)
  for index = 1, #ended do
    local note = ended[index]
    if note.refund then
      kind.refund(note.refund, kind.read(note.refund, key, holds.now, nil, nil, declared, false, true))
    end
    call('ZREM', holds.name, 'e' .. note.holder, note.member)
  end
end

-- Leaves it out of the state of a peek instead, which writes nothing.
local function leave_out(kind, holds, ended, state)
  for index = 1, #ended do
    holds.members = holds.members - 2
    if ended[index].refund then
      kind.leave_out(ended[index].refund, state)
    end
  end
end

-- Refuses one holder more than a key may have.
local function check_room(holds)
  if holds.members >= 2 * MOST_HOLDERS then
    fail('ERR rl: this key has 1048576 holds, the most there may be; RL.SETTLE ends a hold')
  end
end

-- The key lives until then at least, in whole seconds. Returns when it expires.
local function live_until(holds, time)
  local wanted, expiry = ceil(time / 1000) * 1000, expiry_of(holds.name, holds.now)
  if not expiry or wanted > expiry then
    call('PEXPIREAT', holds.name, wanted)
    return wanted
  end
  return expiry
end

-- Writes down that the holder has `counted` the units of a rule, or makes its hold last longer. What ends by itself has to be found for
-- as long as its units may count.
local function apply(rule, holds, counted)
  local own, ends, at = holds.own, holds.now + rule.lease, holds.now
  if own then
    ends, at = max(ends, holds.ends), own.at
    if ends > holds.ends then
      call('ZADD', holds.name, ends, 'e' .. rule.holder)
    end
  elseif counted then
    local note = format('h%016.0f%016.0f', rule.cost, at)
    for index = 1, rule.count do
      if rule.windows[index] < 0 then
        note = note .. format('@%016.0f', -1 - rule.windows[index])
      end
    end
    call('ZADD', holds.name, ends, 'e' .. rule.holder, score_of(rule.holder), note .. ' ' .. rule.holder)
  else
    return
  end
  local latest = ends
  for index = 1, rule.count do
    local window = rule.windows[index]
    latest = max(latest, window < 0 and -1 - window or at + window)
  end
  live_until(holds, latest)
end

-- Writes down that the holder has settled, in place of its hold.
local function settle(rule, holds, actual)
  local ends = holds.now + max(rule.lease, REMEMBERED)
  call('ZADD', holds.name, ends, 'e' .. rule.holder, format('%.0f', -1 - actual), 's' .. rule.holder)
  if holds.own then
    call('ZREM', holds.name, holds.own.member)
  end
  local expiry = live_until(holds, ends)
  -- Where nobody holds anything now, the key expires with the last settlement that is known. It keeps an expiry that is not much
  -- later: the next hold would move it back.
  if expiry - ends > MOST_LATE and call('ZCOUNT', holds.name, END_OF_TIMES, '+inf') == 0 then
    local last = call('ZREVRANGEBYSCORE', holds.name, format('(%.0f', END_OF_TIMES), 0, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    last = ceil(tonumber(last) / 1000) * 1000
    if expiry - last > MOST_LATE then
      call('PEXPIREAT', holds.name, last)
    end
  end
end

-- Changes nothing, but is refused where memory is full: before units are given back, since the note that says so would be refused later.
local function check_memory(rule, holds)
  call('ZADD', holds.name, 'XX', holds.ends, 'e' .. rule.holder)
end

held = {
  read = read, open = open, find_ended = find_ended, give_back = give_back, leave_out = leave_out, check_room = check_room, check_memory = check_memory, apply = apply, settle = settle,
}
