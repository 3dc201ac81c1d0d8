-- The parts of the bytes of a compact log.

local HEADER = 4
local BLOCK = 256
local BLOCK_HEAD = 13
local LONGEST_ENTRY = 15
local LAST_END = 16777152 -- The last offset at which entries may end.

-- The check of a footer.
local function check_of(length, end_at, head_at, before, units, age, newest)
  local mixed = (length % 65521 * 4099 + end_at % 65521) % 65521
  mixed = (mixed * 4099 + head_at % 65521) % 65521
  mixed = (mixed * 4099 + before % 65521) % 65521
  mixed = (mixed * 4099 + units % 65521) % 65521
  mixed = (mixed * 4099 + age % 65521) % 65521
  return (mixed * 4099 + newest % 65521) % 65521
end

-- The varint at an index of a table, which has at most `most` bytes and ends at `last` at the latest, and the index after it.
local function varint(bytes, at, last, most)
  local value, factor, from = 0, 1, at
  last = last - at >= most and at + most - 1 or last
  while at <= last do
    local digit = bytes[at]
    at = at + 1
    if digit < 128 then
      if digit == 0 and at > from + 1 then
        return nil -- Not the shortest form.
      end
      return value + digit * factor, at
    end
    value, factor = value + (digit - 128) * factor, factor * 128
  end
end

-- A number of six bytes.
local function stamp_at(bytes, at)
  return bytes[at] + bytes[at + 1] * 256 + bytes[at + 2] * 65536 + bytes[at + 3] * 16777216
    + bytes[at + 4] * 4294967296 + bytes[at + 5] * 1099511627776
end

-- Which block an offset lies in.
local function block_of(at)
  return (at - HEADER - (at - HEADER) % BLOCK) / BLOCK
end

-- Whether a block ends at an offset, and the next one begins.
local function is_boundary(at)
  return (at - HEADER) % BLOCK == 0 and at > HEADER
end

-- Whether an offset lies after the head of its block. The first block has no head.
local function holds_entries(at)
  return at >= HEADER and (at < HEADER + BLOCK or (at - HEADER) % BLOCK >= BLOCK_HEAD)
end
