-- The search for an entry in a compact log. Fetches the bytes that it reads, and no others.

local min = math.min

-- The bytes from one offset to another, in a text that may have more. Returns the text and the offset at which it begins.
local function text_of(log, from, to)
  if from >= log.base then
    return log.text, log.base
  elseif not log.piece or from < log.piece_base or to > log.piece_base + #log.piece then
    log.piece, log.piece_base = call('GETRANGE', log.key, from, to - 1), from
  end
  return log.piece, log.piece_base
end

-- A table of these bytes, and what to subtract from an offset to find its byte there. `further`: up to where bytes may be
-- needed next.
local function bytes_of(log, from, to, further)
  if from <= log.shift or to > log.upto then
    further = from + 32 < further and from + 32 or further
    further = further > to and further or to
    local text, base = text_of(log, from, further)
    log.bytes, log.shift, log.upto = {byte(text, from - base + 1, further - base)}, from - 1, further
  end
  return log.bytes, log.shift
end

local function is_within(log, units, stamp)
  return log.head_stamp <= stamp and stamp <= log.end_stamp and log.head_units <= units and units <= log.end_units
end

-- The place at the beginning of a block after that of the oldest entry.
local function block_mark(log, block)
  local at = block * BLOCK + HEADER
  if at + BLOCK_HEAD > log.length then
    fail(LOG_IS_DAMAGED)
  end
  local bytes, shift = bytes_of(log, at, at + BLOCK_HEAD, log.length)
  local stamp = stamp_at(bytes, at - shift)
  local units = stamp_at(bytes, at - shift + 6) + bytes[at - shift + 12] * 281474976710656
  if units > MOST then
    fail(LOG_IS_DAMAGED)
  end
  units = units - log.origin
  units = units < 0 and units + UNITS or units
  if not is_within(log, units, stamp) then
    fail(LOG_IS_DAMAGED)
  end
  return at, units, stamp
end

-- The end of the block that an offset lies in, or of the entries.
local function block_end(log, at)
  local to = at - (at - HEADER) % BLOCK + BLOCK
  return to < log.end_at and to or log.end_at
end

-- The difference and the weight of the entry at an offset, and where it ends.
local function entry_at(log, at)
  local to = block_end(log, at)
  local bytes, shift = bytes_of(log, at, at + LONGEST_ENTRY < to and at + LONGEST_ENTRY or to, to)
  local weight, last = 1, to - 1 - shift
  local packed, behind = varint(bytes, at - shift, last, 7)
  if packed and packed % 2 == 1 then
    weight, behind = varint(bytes, behind, last, 8)
    weight, packed = weight and weight + 2, packed - 1
  end
  if behind and weight <= MOST then
    return packed / 2, weight, behind + shift
  end
end

-- The offset after the filler at an offset.
local function skip_filler(log, at)
  local to = block_end(log, at)
  if not is_boundary(to) or to - at >= LONGEST_ENTRY then
    fail(LOG_IS_DAMAGED)
  end
  local bytes, shift = bytes_of(log, at, to, to)
  for place = at, to - 1 do
    if bytes[place - shift] ~= 255 then
      fail(LOG_IS_DAMAGED)
    end
  end
  return to
end

-- The entry at a place: its offset, the offset of the place before it, and the place after it. Nothing at the end.
local function step(log, at, units, stamp)
  local before, difference, weight, behind = at, nil, nil, nil
  if at < log.end_at and not is_boundary(at) then
    difference, weight, behind = entry_at(log, at)
    before = difference and at or skip_filler(log, at)
  end
  if not difference then
    if before >= log.end_at then
      if before ~= log.end_at or units ~= log.end_units or stamp ~= log.end_stamp then
        fail(LOG_IS_DAMAGED)
      end
      return nil
    end
    local _, block_units, block_stamp = block_mark(log, block_of(before))
    if block_units ~= units or block_stamp ~= stamp then
      fail(LOG_IS_DAMAGED)
    end
    at = before + BLOCK_HEAD
    difference, weight, behind = entry_at(log, at)
    if not difference then
      fail(LOG_IS_DAMAGED)
    end
  end
  units, stamp = units + weight, stamp + difference
  if not is_within(log, units, stamp) then
    fail(LOG_IS_DAMAGED)
  end
  return at, before, behind, units, stamp
end

-- Skips entries of one byte, which weigh 1, to the end of their block at most. The next step checks the place.
local function skip(log, at, units, stamp, by_units, bound)
  if at >= log.end_at or is_boundary(at) then
    return at, units, stamp
  end
  local to = block_end(log, at)
  local bytes, shift = bytes_of(log, at, to, log.end_at)
  while at < to do
    local digit = bytes[at - shift]
    if digit >= 128 or digit % 2 == 1 or (by_units and units + 1 or stamp + digit / 2) > bound then
      break
    end
    at, units, stamp = at + 1, units + 1, stamp + digit / 2
  end
  return at, units, stamp
end

-- The first entry from a place on after which the units (`by_units`) or the stamp are above a bound: its offset, the place before it,
-- and the place after it.
local function walk(log, at, units, stamp, by_units, bound)
  while true do
    at, units, stamp = skip(log, at, units, stamp, by_units, bound)
    local entry, before, after_at, after_units, after_stamp = step(log, at, units, stamp)
    if not entry then
      fail(LOG_IS_DAMAGED)
    elseif (by_units and after_units or after_stamp) > bound then
      return entry, before, units, stamp, after_at, after_units, after_stamp
    end
    at, units, stamp = after_at, after_units, after_stamp
  end
end

-- The first such entry of the log. Searches the blocks, then one block.
local function seek(log, by_units, bound)
  local first = block_of(log.head_at)
  local low, high, middle = first, block_of(log.end_at - 1) + 1, first + 1
  if middle < high then
    -- The entry is often near the head: the head's block and the next block's head are fetched at once.
    text_of(log, log.head_at, min(middle * BLOCK + HEADER + BLOCK_HEAD, log.length))
  end
  while low < middle and middle < high do
    local _, units, stamp = block_mark(log, middle)
    if (by_units and units or stamp) <= bound then
      low = middle
    else
      high = middle
    end
    middle = floor((low + high) / 2)
  end
  local at, units, stamp
  if low == first then
    -- What was before the oldest entry may be gone; its stamp follows from the difference.
    local difference, weight, behind = entry_at(log, log.head_at)
    if not difference or weight > log.end_units - log.head_units then
      fail(LOG_IS_DAMAGED)
    end
    at, units, stamp = log.head_at, log.head_units, log.head_stamp - difference
    if (by_units and units + weight or log.head_stamp) > bound then
      return at, at, units, stamp, behind, units + weight, log.head_stamp
    end
    at, units, stamp = behind, units + weight, log.head_stamp
  else
    at, units, stamp = block_mark(log, low)
    text_of(log, at, block_end(log, at))
  end
  return walk(log, at, units, stamp, by_units, bound)
end

search = {
  text_of = text_of, bytes_of = bytes_of, block_mark = block_mark, entry_at = entry_at, step = step, walk = walk, seek = seek,
}
