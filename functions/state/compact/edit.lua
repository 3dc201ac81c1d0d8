-- What is written into a compact log: entries one after the other, block heads where they are due, and the footer.

local char, concat, max, min = string.char, table.concat, math.max, math.min

-- A writer is a table of bytes to write at an offset, `size` of them, and the place at their end.
local function writer_at(at, units, stamp, origin)
  return {at = at, units = units, stamp = stamp, origin = origin, size = 0}
end

local function put_varint(writer, value)
  local size = writer.size
  while value >= 128 do
    local low = value % 128
    size = size + 1
    writer[size] = low + 128
    value = (value - low) / 128
  end
  writer[size + 1], writer.size = value, size + 1
end

-- A number of this many bytes.
local function put_fixed(writer, value, count)
  local size = writer.size
  for place = size + 1, size + count do
    local low = value % 256
    writer[place] = low
    value = (value - low) / 256
  end
  writer.size = size + count
end

local function put_same(writer, value, count)
  for place = writer.size + 1, writer.size + count do
    writer[place] = value
  end
  writer.size = writer.size + count
end

local function text_of_writer(writer)
  if writer.size <= 1000 then
    return char(unpack(writer, 1, writer.size))
  end
  local parts = {}
  for from = 1, writer.size, 1000 do
    parts[#parts + 1] = char(unpack(writer, from, min(from + 999, writer.size)))
  end
  return concat(parts)
end

-- Units before a place as they are stored.
local function stored_units(units, origin)
  units = units - (UNITS - origin)
  return units < 0 and units + UNITS or units
end

-- Writes an entry that is no earlier than the one before, and returns its offset.
local function push(writer, stamp, weight)
  local at = writer.at
  if at == HEADER then
    writer.stamp = stamp -- The first entry of a new string.
  end
  local difference, begin = stamp - writer.stamp, writer.size
  if difference < 0 then
    fail(LOG_IS_DAMAGED)
  end
  local room = BLOCK - (at - HEADER) % BLOCK
  if room == BLOCK and at > HEADER then
    room = 0 -- A block head comes first.
  end
  if room > 0 then
    if weight == 1 then
      put_varint(writer, difference * 2)
    else
      put_varint(writer, difference * 2 + 1)
      put_varint(writer, weight - 2)
    end
  end
  if writer.size - begin > room or room == 0 then
    writer.size = begin
    put_same(writer, 255, room)
    put_fixed(writer, writer.stamp, 6)
    put_fixed(writer, stored_units(writer.units, writer.origin), 7)
    at = at + room + BLOCK_HEAD
    put_varint(writer, difference * 2 + (weight == 1 and 0 or 1))
    if weight > 1 then
      put_varint(writer, weight - 2)
    end
  end
  writer.at = writer.at + writer.size - begin
  writer.units, writer.stamp = writer.units + weight, stamp
  return at
end

-- The footer of a log that ends at the place of a writer, in a string that has this length or gets longer: a writer, and
-- the gap before it. Nothing if the log would be too long.
local function footer_of(writer, head_at, head_units, head_stamp, length)
  local end_at, newest = writer.at, writer.stamp
  if end_at > LAST_END then
    return nil
  end
  local before, units, age = stored_units(head_units, writer.origin), writer.units - head_units, newest - head_stamp
  local footer = {size = 0}
  put_varint(footer, end_at)
  put_varint(footer, head_at)
  put_varint(footer, before)
  put_varint(footer, units)
  put_varint(footer, age)
  put_fixed(footer, newest, 6)
  local size = footer.size + 3
  local gap = max(0, length - end_at - size)
  put_fixed(footer, check_of(end_at + gap + size, end_at, head_at, before, units, age, newest), 2)
  footer[size], footer.size = size, size
  return footer, gap
end
