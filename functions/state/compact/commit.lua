-- The change of a compact log that brings its bytes up to date: with a new entry, or without those that are taken back.

local FEWEST_DEAD = 8 -- Fewer dead bytes stay where they are.
local FEWEST_DEAD_WHEN_FULL = 65536
local LATEST = 281474976710655 -- 2^48 - 1
local MOST_BLOCKS = 128 -- The most blocks of later entries that one call writes anew.
local NARROW_GAP = 64

-- Copies entries of one byte, which are the same after any other entry, up to the end of a block. Returns where they end.
local function copy(log, writer, at, units, stamp)
  local room = BLOCK - (writer.at - HEADER) % BLOCK
  local to = at - (at - HEADER) % BLOCK + BLOCK
  to = min(to, log.end_at, at + room)
  if room == BLOCK or (at - HEADER) % BLOCK == 0 or at >= to then
    return at, units, stamp
  end
  local bytes, shift = search.bytes_of(log, at, to, to)
  local size = writer.size
  while at < to do
    local digit = bytes[at - shift]
    if digit >= 128 or digit % 2 == 1 then
      break
    end
    size, at, units, stamp = size + 1, at + 1, units + 1, stamp + digit / 2
    writer[size] = digit
  end
  if stamp > log.end_stamp or units > log.end_units then
    fail(LOG_IS_DAMAGED)
  end
  writer.at, writer.units = writer.at + size - writer.size, writer.units + size - writer.size
  writer.size, writer.stamp = size, stamp
  return at, units, stamp
end

-- Writes the new entry, if there is one, and the entries from a place on. Returns the head of what is written, which is the
-- given head unless the first of these entries becomes it.
local function put_rest(log, writer, from_at, head_at, head_stamp, new, rest_at, rest_units, rest_stamp)
  local first_at, first_stamp
  if new then
    first_at, first_stamp = push(writer, new.stamp, new.weight), new.stamp
  end
  if rest_at < log.end_at then
    (search or make_search()).text_of(log, rest_at, log.end_at) -- At once.
  end
  while rest_at ~= log.end_at do
    local entry, _, after_at, after_units, after_stamp = search.step(log, rest_at, rest_units, rest_stamp)
    if not entry then
      break
    end
    local at = push(writer, after_stamp, after_units - rest_units)
    if not first_at then
      first_at, first_stamp = at, after_stamp
    end
    rest_at, rest_units, rest_stamp = copy(log, writer, after_at, after_units, after_stamp)
  end
  if from_at ~= log.head_at then
    return head_at, head_stamp
  elseif not first_at then
    fail(LOG_IS_DAMAGED)
  end
  return first_at, first_stamp
end

-- The dead bytes that compacting a log would drop.
local function dead_bytes(log)
  local first = block_of(log.head_at)
  local from = first == block_of(log.end_at - 1) and log.head_at or first * BLOCK + HEADER
  return max(0, log.footer - (log.end_at - from) - HEADER)
end

-- Whether the dead bytes that can be dropped are worth compacting a log for.
local function is_compaction_due(log)
  local dead = dead_bytes(log)
  return dead >= FEWEST_DEAD and dead * 4 >= log.end_at - log.head_at
end

-- A change that replaces the string by one with the live entries alone, or without the dead blocks.
local function compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
  local writer, prefix = writer_at(HEADER, 0, 0, 0), 'RLS\1'
  local head_at, head_units = HEADER, 0
  local first = block_of(log.head_at)
  if from_at == log.head_at then
    -- No entry stays where it is.
  elseif first == block_of(from_at - 1) then
    -- All stay as they are but the oldest: it has no other before it now.
    local _, weight, behind = (search or make_search()).entry_at(log, log.head_at)
    if not weight then
      fail(LOG_IS_DAMAGED)
    end
    push(writer, log.head_stamp, weight)
    local bytes, shift = search.bytes_of(log, behind, from_at, from_at)
    local last = from_at - 1 - shift
    while last >= behind - shift and bytes[last] == 255 do
      last = last - 1 -- The block may end in filler, as no entry does.
    end
    for place = behind - shift, last do
      writer.size = writer.size + 1
      writer[writer.size] = bytes[place]
    end
    writer.at = HEADER + writer.size
    writer.units, writer.stamp = from_units - log.head_units, from_stamp
  else
    local begin = first * BLOCK + HEADER
    local text, base = (search or make_search()).text_of(log, begin, from_at)
    prefix = prefix .. sub(text, begin - base + 1, from_at - base)
    writer = writer_at(from_at - begin + HEADER, from_units, from_stamp, log.origin)
    head_at, head_units = log.head_at - begin + HEADER, log.head_units
  end
  local head_stamp
  head_at, head_stamp = put_rest(log, writer, from_at, head_at, log.head_stamp, new, rest_at, rest_units, rest_stamp)
  local footer = footer_of(writer, head_at, head_units, head_stamp, 0) or fail(LOG_IS_FULL)
  log.is_compacted = true
  return {whole = prefix .. text_of_writer(writer) .. text_of_writer(footer)}
end

-- The change that rewrites a log from a place on: first the new entry, if there is one, then the entries from another place
-- on. `compaction`: whether it may replace the string to get rid of dead bytes, where that is 'due' or where the log is 'full'.
local function rewrite(log, compaction, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
  if compaction == 'due' and is_compaction_due(log) then
    return compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
  end
  -- The entry before may be dead and later than one that becomes the head, whose difference does not count.
  local stamp = new and new.stamp < from_stamp and new.stamp or from_stamp
  local writer = writer_at(from_at, from_units, stamp, log.origin)
  local head_at, head_stamp =
    put_rest(log, writer, from_at, log.head_at, log.head_stamp, new, rest_at, rest_units, rest_stamp)
  local footer, gap = footer_of(writer, head_at, log.head_units, head_stamp, log.length)
  if not footer then
    if not compaction or dead_bytes(log) < FEWEST_DEAD_WHEN_FULL then
      fail(LOG_IS_FULL)
    end
    return compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
  end
  if gap > NARROW_GAP then
    local change = {offset = writer.at + gap, text = text_of_writer(footer)}
    if writer.size > 0 then
      change.first_offset, change.first_text = from_at, text_of_writer(writer)
    end
    return change
  end
  put_same(writer, 0, gap)
  for place = 1, footer.size do
    writer[writer.size + place] = footer[place]
  end
  writer.size = writer.size + footer.size
  return {offset = from_at, text = text_of_writer(writer)}
end

-- The first place from which one call may rewrite a log up to its end. Nothing if it may rewrite all of it.
local function first_rewritable(log)
  local first = block_of(log.end_at - 1) + 1 - MOST_BLOCKS
  if first > block_of(log.head_at) then
    return (search or make_search()).block_mark(log, first)
  end
end

writer = {}

function writer.commit(log, units, compaction)
  local at, end_units, end_stamp = log.end_at, log.end_units, log.end_stamp
  if units == 0 then
    log.change = log.is_empty and {removed = true}
      or rewrite(log, compaction, at, end_units, end_stamp, nil, at, end_units, end_stamp)
    return
  end
  local new = {stamp = log.turn or log.now, weight = units}
  if new.stamp > LATEST then
    fail("ERR rl: the server's clock is before 1970 or after 10889")
  elseif units > MOST - log.units then
    fail(LOG_IS_FULL)
  elseif log.is_empty then
    local begun = writer_at(HEADER, 0, 0, 0)
    push(begun, new.stamp, units)
    local footer = footer_of(begun, HEADER, 0, new.stamp, 0)
    log.change = {whole = 'RLS\1' .. text_of_writer(begun) .. text_of_writer(footer)}
    return
  end
  if new.stamp < end_stamp then
    local _, _, stamp = first_rewritable(log)
    new.stamp = stamp and max(stamp, new.stamp) or new.stamp
    if new.stamp < end_stamp then
      _, at, end_units, end_stamp = seek(log, false, new.stamp)
    end
  end
  log.change = rewrite(log, compaction, at, end_units, end_stamp, new, at, end_units, end_stamp)
end

-- The first entry of a stamp that can be taken back, and the place after the last one. Nothing if there is no such entry.
local function stamped(log, time)
  if log.is_empty or time < log.head_stamp or time > log.end_stamp then
    return nil
  end
  local _, from_at, from_units, from_stamp, at, units, stamp = seek(log, false, time - 1)
  local _, kept = first_rewritable(log)
  if kept and from_units < kept then
    _, from_at, from_units, from_stamp, at, units, stamp = seek(log, true, kept)
  end
  if stamp ~= time then
    return nil
  end
  local until_at, until_units, until_stamp = log.end_at, log.end_units, log.end_stamp
  if time < log.end_stamp then
    _, until_at, until_units, until_stamp = search.walk(log, at, units, stamp, false, time)
  end
  return from_at, from_units, from_stamp, at, units, until_at, until_units, until_stamp
end

function writer.refundable(log, time)
  local _, from_units, _, _, _, _, until_units = stamped(log, time)
  return from_units and until_units - from_units or 0
end

function writer.refund(log, units, time, compaction)
  local from_at, from_units, from_stamp, after_at, after_units, until_at, until_units, until_stamp
  if time then
    from_at, from_units, from_stamp, after_at, after_units, until_at, until_units, until_stamp = stamped(log, time)
  elseif not log.is_empty then
    from_units, until_at, until_units, until_stamp = log.head_units, log.end_at, log.end_units, log.end_stamp
    if log.end_stamp > log.now then
      local _, kept = first_rewritable(log)
      _, until_at, until_units, until_stamp = seek(log, false, log.now)
      from_units = min(max(kept or 0, log.head_units), until_units)
    end
  end
  local taken = from_units and min(until_units - from_units, units) or 0
  if taken == 0 then
    if log.is_pruned then
      writer.commit(log, 0, compaction)
    end
    return 0
  elseif taken == log.units then
    log.change = {removed = true}
    return taken
  end
  -- The units before this one stay, those from it to `until` go.
  local first, stamp, _ = until_units - taken, time, nil
  if not time then
    _, from_at, from_units, from_stamp, _, _, stamp = seek(log, true, first)
  elseif first >= after_units then
    _, from_at, from_units, from_stamp = search.walk(log, after_at, after_units, time, true, first)
  end
  local kept = first - from_units
  local lighter = kept > 0 and {stamp = stamp, weight = kept} or nil
  local end_at, end_units, end_stamp = log.end_at, log.end_units, log.end_stamp
  if until_at == log.end_at then
    log.end_at, log.end_units, log.end_stamp = from_at, from_units, from_stamp
    until_at, until_units, until_stamp = from_at, from_units, from_stamp
  end
  log.change = rewrite(log, compaction, from_at, from_units, from_stamp, lighter, until_at, until_units, until_stamp)
  log.end_at, log.end_units, log.end_stamp = end_at, end_units, end_stamp
  return taken
end
