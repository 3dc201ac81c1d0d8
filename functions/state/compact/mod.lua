-- The log of a sliding window in one string; docs/COMPACT.md describes the bytes, and src/state/compact/ reads and
-- writes the same. Offsets count from 0. A place between two entries is three numbers: the offset, the units of all
-- entries before it, from the oldest that counted when the log was opened, and the stamp of the entry before it. Bytes
-- are worked on as tables of numbers: a call of string.byte or string.char costs more than an index of a table.

local byte, sub = string.byte, string.sub

local LONGEST_LOG = 16777216
local UNITS = 9007199254740992 -- Units before a place are counted modulo this.
local NEARLY_FULL = 16711616 -- A call adds less than is left then.
local AT_ONCE = 1024 -- A log up to this length is fetched as a whole.

local LOG_IS_DAMAGED = 'ERR rl: the log at this key is damaged; RL.RESET removes it'

include 'state/compact/format'

-- Opens the log at a key that has a string, or nothing.
local function open(key, window, now, exists)
  if not exists then
    return {
      key = key, window = window, now = now, permanent = 0, beyond = 0, is_empty = true, units = 0, length = 0, added = 0, turn = false,
    }
  end
  local text = call('GETRANGE', key, -AT_ONCE, -1)
  local length, head = #text, text
  if length == AT_ONCE then
    length = call('STRLEN', key)
    head = length > AT_ONCE and call('GETRANGE', key, 0, 3) or text
  end
  if sub(head, 1, 4) ~= 'RLS\1' then
    if sub(head, 1, 3) ~= 'RLS' or #head < 4 then
      fail(WRONG_TYPE)
    end
    fail('ERR rl: the log at this key was written by a later version of the module, which alone can read it')
  end
  local tail = {byte(text, -40, -1)}
  local last = #tail
  local size = tail[last]
  local footer, at, behind = length - size, last - size + 1, last - 9
  if length > LONGEST_LOG or size < 14 or at < 1 then
    fail(LOG_IS_DAMAGED)
  end
  local end_at, head_at, before, units, age
  end_at, at = varint(tail, at, behind, 4)
  if at then head_at, at = varint(tail, at, behind, 4) end
  if at then before, at = varint(tail, at, behind, 8) end
  if at then units, at = varint(tail, at, behind, 8) end
  if at then age, at = varint(tail, at, behind, 7) end
  if at ~= last - 8 then
    fail(LOG_IS_DAMAGED)
  end
  local newest = stamp_at(tail, at)
  if check_of(length, end_at, head_at, before, units, age, newest) ~= tail[last - 2] + tail[last - 1] * 256
    or head_at >= end_at or end_at > footer or end_at > LAST_END or age > newest
    or before > MOST or units < 1 or units > MOST
    or not (holds_entries(head_at) and (is_boundary(end_at) or holds_entries(end_at - 1))) then
    fail(LOG_IS_DAMAGED)
  end
  return {
    key = key, window = window, now = now, permanent = 0, beyond = 0, turn = false, is_empty = false, is_pruned = false, units = units,
    length = length, text = text, base = length - #text, bytes = tail, shift = length, upto = 0,
    footer = footer, origin = before, head_at = head_at, head_units = 0, head_stamp = newest - age,
    end_at = end_at, end_units = units, end_stamp = newest, added = 0, change = false,
  }
end

local search, writer = nil, nil

local function make_search()
  include 'state/compact/search'
  return search
end

local function seek(log, by_units, bound)
  return (search or make_search()).seek(log, by_units, bound)
end

-- Reads a log for its longest window, and drops what is not kept. The string stays as it is until something is written.
local function read(key, window, now, exists)
  local log, expired_to, counted = open(key, window, now, exists), now - window, now + window
  if not exists or log.head_stamp > expired_to and log.end_stamp <= counted then
    return log
  end
  local latest = now + (window > LONGEST_WAIT and window or LONGEST_WAIT)
  log.is_pruned = log.head_stamp <= expired_to or log.end_stamp > latest
  log.is_empty = log.end_stamp <= expired_to or log.head_stamp > latest
  if not log.is_empty and log.head_stamp <= expired_to then
    local entry, _, units, _, _, _, stamp = seek(log, false, expired_to)
    log.head_at, log.head_units, log.head_stamp = entry, units, stamp
  end
  log.is_empty = log.is_empty or log.head_stamp > latest
  if not log.is_empty and log.end_stamp > latest then
    local _, before, units, stamp = seek(log, false, latest)
    log.end_at, log.end_units, log.end_stamp = before, units, stamp
  end
  log.units = log.is_empty and 0 or log.end_units - log.head_units
  if not log.is_empty and log.end_stamp > counted then
    local _, _, units = nil, nil, log.head_units
    if log.head_stamp <= counted then
      _, _, units = seek(log, false, counted)
    end
    log.beyond = log.end_units - units
  end
  return log
end

local function make_writer()
  include 'state/compact/edit'
  include 'state/compact/commit'
  return writer
end
