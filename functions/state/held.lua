-- Holds: who has counted how many units, and when, in a sorted set at `key:held`. A holder has two members there:
--
-- e<holder>                    its score: when the hold ends, or until when a settled holder is remembered
-- h<units><at>[@<ms>] <holder>  a hold: its units, when they were counted, and in which windows that end at a time
-- s<ACTUAL><at> <holder>       a settled holder
--
-- Numbers have 16 digits. The scores of the last two are negative and made of the holder's bytes, by which they are found. The module
-- has the same members and scores; src/state/held.rs describes them in prose.

local SETTLED = 281474976710656 -- 2^48: from the score of a hold to that of a settled one.
local MOST_HOLDERS = 1048576
local REMEMBERED = 60000 -- That a holder has settled is known for this time at least.
local WORK_OF_REWRITING = 16 -- Of a compact log, whose end is written anew.

local function score_of(holder)
  local hash = 0
  for index = 1, #holder do
    hash = (hash * 31 + string.byte(holder, index)) % 281474976710656
  end
  return -1 - hash
end

-- What a member says of a holder, if it is a note of this kind.
local function parse(member, letter, holder)
  local head, ends, place = sub(member, 1, 33), {}, 34
  local piece = sub(member, place, place + 16)
  while #piece == 17 and find(piece, '^@%d+$') do
    ends[#ends + 1], place = tonumber(sub(piece, 2)), place + 17
    piece = sub(member, place, place + 16)
  end
  local units = #head == 33 and find(head, '^' .. letter .. '%d+$') and tonumber(sub(head, 2, 17))
  if units and units <= MOST and sub(member, place) == ' ' .. holder then
    return {
      holder = holder, member = member, is_settled = letter == 's', units = units, at = tonumber(sub(head, 18)), ends = ends,
    }
  end
end

local function find_note(holds, letter, score, holder)
  score = format('%.0f', score)
  local members = call('ZRANGEBYSCORE', holds.name, score, score)
  for index = 1, #members do
    local note = parse(members[index], letter, holder)
    if note then
      return note
    end
  end
end

local function note_of(holds, holder)
  local score = score_of(holder)
  return find_note(holds, 'h', score, holder) or find_note(holds, 's', score - SETTLED, holder) or fail(WRONG_TYPE)
end

-- Reads the holds of a key: the note of the holder, also if that `has_ended`, and the first of what `ended`.
local function read(rule, key, now, declared)
  local holds = {name = counter_name(key, 'held', declared), now = now, ended = {}}
  holds.members = call('ZCARD', holds.name)
  if holds.members == 0 then
    check_missing(key, holds.name, declared)
    return holds
  end
  local score = call('ZSCORE', holds.name, 'e' .. rule.holder)
  if score then
    holds.note, holds.ends = note_of(holds, rule.holder), ceil(tonumber(score))
    holds.own = holds.ends > now and holds.note or nil
  end
  holds.ended = call('ZRANGEBYSCORE', holds.name, '(0', now, 'LIMIT', 0, MOST_WORK)
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

-- Gives back what has ended at a key, as RL.REFUND with the time at which it was counted. What one call does is bounded: `work` is what
-- is left of that. The first of a call and the hold of its own holder are given back in any case. Returns whether there was any.
local function give_back(kind, rule, key, holds, declared, work)
  if #holds.ended == 0 then
    return false
  end
  local ended, own, has_log = {}, nil, kind.plan ~= nil
  for index = 1, #holds.ended do
    local holder = sub(holds.ended[index], 2)
    if holder ~= rule.holder then
      ended[#ended + 1] = sub(holds.ended[index], 1, 1) == 'e' and note_of(holds, holder) or fail(WRONG_TYPE)
    end
  end
  if holds.note and not holds.own then
    own = holds.note
    table.insert(ended, 1, own)
  end
  kind.complete()
  for index = 1, #ended do
    local note, cost = ended[index], 1
    local refund = not note.is_settled and refund_of(rule, note)
    if refund and has_log then
      cost = WORK_OF_REWRITING
      if call('TYPE', key).ok == 'zset' then
        cost, refund.cost = max(1, note.units), min(note.units, MOST_ADDED)
      end
    end
    if note ~= own and work.has_begun and cost > work.left then
      break
    end
    work.left, work.has_begun = max(0, work.left - cost), true
    if refund and refund.count > 0 then
      kind.refund(refund, kind.read(refund, key, holds.now, nil, nil, declared, false, true))
    end
    call('ZREM', holds.name, 'e' .. note.holder, note.member)
  end
  return true
end

-- Refuses one holder more than a key may have.
local function check_room(holds)
  if holds.members >= 2 * MOST_HOLDERS then
    fail('ERR rl: this key has 1048576 holds, the most there may be; RL.SETTLE ends a hold')
  end
end

local function add(holds, holder, ends, score, note)
  call('ZADD', holds.name, ends, 'e' .. holder, format('%.0f', score), note .. ' ' .. holder)
end

-- The key lives until then at least, in whole seconds.
local function live_until(holds, time)
  local wanted, expiry = ceil(time / 1000) * 1000, expiry_of(holds.name, holds.now)
  if not expiry or wanted > expiry then
    call('PEXPIREAT', holds.name, wanted)
  end
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
    add(holds, rule.holder, ends, score_of(rule.holder), note)
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
  add(holds, rule.holder, ends, score_of(rule.holder) - SETTLED, format('s%016.0f%016.0f', actual, holds.now))
  if holds.own then
    call('ZREM', holds.name, holds.own.member)
  end
  if call('ZCOUNT', holds.name, -SETTLED, -1) > 0 then
    live_until(holds, ends)
  else
    -- Nobody holds anything now. The key expires with the last settlement that is known.
    local last = tonumber(call('ZREVRANGE', holds.name, 0, 0, 'WITHSCORES')[2])
    local wanted = ceil(last / 1000) * 1000
    if expiry_of(holds.name, holds.now) ~= wanted then
      call('PEXPIREAT', holds.name, wanted)
    end
  end
end

-- Changes nothing, but is refused where memory is full: before units are given back, since the note that says so would be refused later.
local function check_memory(rule, holds)
  call('ZADD', holds.name, 'XX', holds.ends, 'e' .. rule.holder)
end

held = {read = read, open = open, give_back = give_back, check_room = check_room, check_memory = check_memory, apply = apply, settle = settle}
