local floor, find, format = math.floor, string.find, string.format
local function fail(line)
  error(line, 0)
end
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    local line = reply.err
    if find(line, 'non local key', 1, true) or find(line, 'rehashing of', 1, true) then
      fail('TRYAGAIN Multiple keys request during rehashing of slot')
    end
    local _, _, dash, text = find(line, '^@user_script: %d+: (%-?)(.*)')
    fail(text and (dash == '-' and text or 'ERR ' .. text) or line)
  end
  return reply
end
local function clock()
  local time = call('TIME')
  local seconds, micros = tonumber(time[1]), tonumber(time[2])
  return seconds * 1000 + floor(micros / 1000), seconds, micros * 1000
end
local function expiry_of(key, now)
  if redis.REDIS_VERSION_NUM then
    local at = call('PEXPIRETIME', key)
    return at >= 0 and at or nil
  end
  local left = call('PTTL', key)
  return left >= 0 and now + left or nil
end
local function within(word, least, most)
  if #word <= 16 and (word == '0' or find(word, '^[1-9]%d*$')) then
    local value = tonumber(word)
    if value >= least and value <= most then
      return value
    end
  end
end
local function window_of(word, name)
  local seconds = within(word, 1, 2147483647)
  if seconds then
    return seconds * 1000
  elseif not name and find(word, '^@') then
    return -1 - (within(string.sub(word, 2), 0, 9007199254740991) or fail('ERR @ms must be a unix time in milliseconds, an integer from 0 to 9007199254740991'))
  end
  local _, _, whole, places = find(word, '^(%d+)%.(%d%d?%d?)$')
  seconds = whole and within(whole, 0, 2147483647)
  local value = seconds and seconds * 1000 + tonumber(places) * 10 ^ (3 - #places)
  return value and value >= 1 and value <= 2147483647 * 1000 and value or fail(format('ERR %s must be a number of seconds from 0.001 to 2147483647 with at most three decimal places', name or 'windowSec'))
end
local open_log = nil
local make_logs = (not ONLY or ONLY == 'sliding') and function()
  local ceil = math.ceil
  local function renewed_expiry(log, exists, newest_stamp)
    local wanted, current = log.now + 2 * log.window, exists and expiry_of(log.key, log.now)
    local newest = (log.beyond > 0 or log.turn) and newest_stamp(log)
    local least = newest and newest + log.window or 0
    local lag = current and wanted - current
    if lag and (lag <= 0 or lag < 1000 and (lag + 1) * 10 <= log.window) and current >= least
      and (lag >= 0 or newest or newest_stamp(log) > log.now) then
      return nil
    end
    return wanted > least and wanted or least
  end
  local sorted, compact = nil, nil
  local function make_sorted()
    local function later(time)
      return time < 0 and '0' or format('(%d', time)
    end
    local function read(key, window, now, prunes)
      local live = redis.pcall('ZCOUNT', key, later(now - window), now + window)
      if type(live) == 'table' then
        if find(live.err, '^WRONGTYPE') then
          return nil
        end
        live = call('ZCOUNT', key, later(now - window), now + window) -- Which is refused, too.
      end
      local card = call('ZCARD', key)
      local log = {
        key = key, window = window, now = now, last_kept = now + (window > 3600000 and window or 3600000), card = card,
        live = live, units = live, beyond = 0, permanent = 0, ahead = 0, expired = 0, added = 0, members = false, turn = false,
      }
      local stale = card - live
      if stale > 0 then
        local expired
        if prunes and stale <= 1000 then
          expired = call('ZREMRANGEBYSCORE', key, 0, now - window)
          stale = stale - expired
        else
          expired = call('ZCOUNT', key, 0, now - window)
          stale = stale - expired
          log.expired = expired
        end
        if stale > 0 then
          log.permanent = call('ZCOUNT', key, '-inf', '(0')
          log.ahead = stale - log.permanent
          if log.ahead > 0 then
            log.beyond = call('ZCOUNT', key, format('(%d', now + window), log.last_kept)
            log.ahead = log.ahead - log.beyond
          end
          log.live = live + log.beyond
          log.units = log.live + log.permanent
        end
      end
      return log
    end
    local function plan(log, units)
      log.added = units
    end
    local function newest_stamp(log)
      local newest = call('ZREVRANGEBYSCORE', log.key, log.last_kept, later(log.now - log.window), 'WITHSCORES', 'LIMIT', 0, 1)
      return ceil(tonumber(newest[2] or 0))
    end
    local function apply(log, kept)
      local key, now, window, added, suffix = log.key, log.now, log.window, log.added, log.card
      if not kept then
        if log.members then
          call('ZREM', key, unpack(log.members))
        end
        return
      end
      if log.expired + log.ahead > 0 and log.units == 0 then
        call('UNLINK', key)
      elseif not log.keeps_stale then
        if log.expired > 1000 then
          call('ZREMRANGEBYRANK', key, log.permanent, log.permanent + 1000 - 1)
        elseif log.expired > 0 then
          call('ZREMRANGEBYSCORE', key, 0, now - window)
        end
        if log.ahead > 1000 then
          call('ZREMRANGEBYRANK', key, -log.ahead, 1000 - 1 - log.ahead)
        elseif log.ahead > 0 then
          call('ZREMRANGEBYSCORE', key, format('(%d', log.last_kept), '+inf')
        end
      end
      local at = log.turn or now
      suffix = log.turn and added > 0 and call('ZCOUNT', key, at, at) or suffix
      while added == 1 do
        added = 1 - call('ZADD', key, 'NX', at, format('%d-%d', at, suffix))
        suffix = suffix + 1
      end
      while added > 0 do
        local words = {}
        for index = 1, added do
          words[2 * index - 1], words[2 * index] = at, format('%d-%d', at, suffix)
          suffix = suffix + 1
        end
        added = added - call('ZADD', key, 'NX', unpack(words))
      end
      local expiry = (log.added > 0 or log.units > 0) and renewed_expiry(log, log.units > 0, newest_stamp)
      if expiry then
        call('PEXPIREAT', key, expiry)
      end
    end
    sorted = {read = read, plan = plan, apply = apply, newest_stamp = newest_stamp}
    function sorted.complete()
      local function stamped_after(log, time)
        return call('ZCOUNT', log.key, later(time), log.last_kept)
      end
      sorted.stamped_after = stamped_after
      function sorted.later_than(log, time)
        return stamped_after(log, time) + log.permanent
      end
      function sorted.stamp_of(log, rank)
        if rank < log.live then
          rank = rank + log.ahead
          return ceil(tonumber(call('ZREVRANGE', log.key, rank, rank, 'WITHSCORES')[2]))
        end
      end
      function sorted.place_from(log, units)
        if stamped_after(log, log.now) + units <= 16384 then
          return log.now
        end
        return sorted.stamp_of(log, 16384 - units) or log.now
      end
      sorted.refundable = HELD and function(log, at)
        return at > log.now - log.window and at <= log.last_kept and call('ZCOUNT', log.key, at, at) or 0
      end
      function sorted.refund(log, cost, at)
        local now, window, members = log.now, log.window, {}
        if log.card == 0 then
          return 0
        end
        if cost > 1000 then
          fail('ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)')
        elseif not at then
          members = call('ZREVRANGEBYSCORE', log.key, now, later(now - window), 'LIMIT', 0, cost)
        elseif at > now - window and at <= log.last_kept then
          members = call('ZREVRANGEBYSCORE', log.key, at, at, 'LIMIT', 0, cost)
        end
        log.members = #members > 0 and members
        return #members
      end
      sorted.complete = nil
    end
    return sorted
  end
  local function make_compact()
    local byte, sub = string.byte, string.sub
    local function check_of(length, end_at, head_at, before, units, age, newest)
      local mixed = (length % 65521 * 4099 + end_at % 65521) % 65521
      mixed = (mixed * 4099 + head_at % 65521) % 65521
      mixed = (mixed * 4099 + before % 65521) % 65521
      mixed = (mixed * 4099 + units % 65521) % 65521
      mixed = (mixed * 4099 + age % 65521) % 65521
      return (mixed * 4099 + newest % 65521) % 65521
    end
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
    local function stamp_at(bytes, at)
      return bytes[at] + bytes[at + 1] * 256 + bytes[at + 2] * 65536 + bytes[at + 3] * 16777216
        + bytes[at + 4] * 4294967296 + bytes[at + 5] * 1099511627776
    end
    local function block_of(at)
      return (at - 4 - (at - 4) % 256) / 256
    end
    local function is_boundary(at)
      return (at - 4) % 256 == 0 and at > 4
    end
    local function holds_entries(at)
      return at >= 4 and (at < 4 + 256 or (at - 4) % 256 >= 13)
    end
    local function open(key, window, now, exists)
      if not exists then
        return {
          key = key, window = window, now = now, permanent = 0, beyond = 0, is_empty = true, units = 0, length = 0, added = 0, turn = false,
        }
      end
      local text = call('GETRANGE', key, -1024, -1)
      local length, head = #text, text
      if length == 1024 then
        length = call('STRLEN', key)
        head = length > 1024 and call('GETRANGE', key, 0, 3) or text
      end
      if sub(head, 1, 4) ~= 'RLS\1' then
        if sub(head, 1, 3) ~= 'RLS' or #head < 4 then
          fail('WRONGTYPE Operation against a key holding the wrong kind of value')
        end
        fail('ERR rl: the log at this key was written by a later version of the module, which alone can read it')
      end
      local tail = {byte(text, -40, -1)}
      local last = #tail
      local size = tail[last]
      local footer, at, behind = length - size, last - size + 1, last - 9
      if length > 16777216 or size < 14 or at < 1 then
        fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
      end
      local end_at, head_at, before, units, age
      end_at, at = varint(tail, at, behind, 4)
      if at then head_at, at = varint(tail, at, behind, 4) end
      if at then before, at = varint(tail, at, behind, 8) end
      if at then units, at = varint(tail, at, behind, 8) end
      if at then age, at = varint(tail, at, behind, 7) end
      if at ~= last - 8 then
        fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
      end
      local newest = stamp_at(tail, at)
      if check_of(length, end_at, head_at, before, units, age, newest) ~= tail[last - 2] + tail[last - 1] * 256
        or head_at >= end_at or end_at > footer or end_at > 16777152 or age > newest
        or before > 9007199254740991 or units < 1 or units > 9007199254740991
        or not (holds_entries(head_at) and (is_boundary(end_at) or holds_entries(end_at - 1))) then
        fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
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
      local min = math.min
      local function text_of(log, from, to)
        if from >= log.base then
          return log.text, log.base
        elseif not log.piece or from < log.piece_base or to > log.piece_base + #log.piece then
          log.piece, log.piece_base = call('GETRANGE', log.key, from, to - 1), from
        end
        return log.piece, log.piece_base
      end
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
      local function block_mark(log, block)
        local at = block * 256 + 4
        if at + 13 > log.length then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        local bytes, shift = bytes_of(log, at, at + 13, log.length)
        local stamp = stamp_at(bytes, at - shift)
        local units = stamp_at(bytes, at - shift + 6) + bytes[at - shift + 12] * 281474976710656
        if units > 9007199254740991 then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        units = units - log.origin
        units = units < 0 and units + 9007199254740992 or units
        if not is_within(log, units, stamp) then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        return at, units, stamp
      end
      local function block_end(log, at)
        local to = at - (at - 4) % 256 + 256
        return to < log.end_at and to or log.end_at
      end
      local function entry_at(log, at)
        local to = block_end(log, at)
        local bytes, shift = bytes_of(log, at, at + 15 < to and at + 15 or to, to)
        local weight, last = 1, to - 1 - shift
        local packed, behind = varint(bytes, at - shift, last, 7)
        if packed and packed % 2 == 1 then
          weight, behind = varint(bytes, behind, last, 8)
          weight, packed = weight and weight + 2, packed - 1
        end
        if behind and weight <= 9007199254740991 then
          return packed / 2, weight, behind + shift
        end
      end
      local function skip_filler(log, at)
        local to = block_end(log, at)
        if not is_boundary(to) or to - at >= 15 then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        local bytes, shift = bytes_of(log, at, to, to)
        for place = at, to - 1 do
          if bytes[place - shift] ~= 255 then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
          end
        end
        return to
      end
      local function step(log, at, units, stamp)
        local before, difference, weight, behind = at, nil, nil, nil
        if at < log.end_at and not is_boundary(at) then
          difference, weight, behind = entry_at(log, at)
          before = difference and at or skip_filler(log, at)
        end
        if not difference then
          if before >= log.end_at then
            if before ~= log.end_at or units ~= log.end_units or stamp ~= log.end_stamp then
              fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
            end
            return nil
          end
          local _, block_units, block_stamp = block_mark(log, block_of(before))
          if block_units ~= units or block_stamp ~= stamp then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
          end
          at = before + 13
          difference, weight, behind = entry_at(log, at)
          if not difference then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
          end
        end
        units, stamp = units + weight, stamp + difference
        if not is_within(log, units, stamp) then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        return at, before, behind, units, stamp
      end
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
      local function walk(log, at, units, stamp, by_units, bound)
        while true do
          at, units, stamp = skip(log, at, units, stamp, by_units, bound)
          local entry, before, after_at, after_units, after_stamp = step(log, at, units, stamp)
          if not entry then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
          elseif (by_units and after_units or after_stamp) > bound then
            return entry, before, units, stamp, after_at, after_units, after_stamp
          end
          at, units, stamp = after_at, after_units, after_stamp
        end
      end
      local function seek(log, by_units, bound)
        local first = block_of(log.head_at)
        local low, high, middle = first, block_of(log.end_at - 1) + 1, first + 1
        if middle < high then
          text_of(log, log.head_at, min(middle * 256 + 4 + 13, log.length))
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
          local difference, weight, behind = entry_at(log, log.head_at)
          if not difference or weight > log.end_units - log.head_units then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
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
      return search
    end
    local function seek(log, by_units, bound)
      return (search or make_search()).seek(log, by_units, bound)
    end
    local function read(key, window, now, exists)
      local log, expired_to, counted = open(key, window, now, exists), now - window, now + window
      if not exists or log.head_stamp > expired_to and log.end_stamp <= counted then
        return log
      end
      local latest = now + (window > 3600000 and window or 3600000)
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
      local char, concat, max, min = string.char, table.concat, math.max, math.min
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
      local function stored_units(units, origin)
        units = units - (9007199254740992 - origin)
        return units < 0 and units + 9007199254740992 or units
      end
      local function push(writer, stamp, weight)
        local at = writer.at
        if at == 4 then
          writer.stamp = stamp -- The first entry of a new string.
        end
        local difference, begin = stamp - writer.stamp, writer.size
        if difference < 0 then
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        local room = 256 - (at - 4) % 256
        if room == 256 and at > 4 then
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
          at = at + room + 13
          put_varint(writer, difference * 2 + (weight == 1 and 0 or 1))
          if weight > 1 then
            put_varint(writer, weight - 2)
          end
        end
        writer.at = writer.at + writer.size - begin
        writer.units, writer.stamp = writer.units + weight, stamp
        return at
      end
      local function footer_of(writer, head_at, head_units, head_stamp, length)
        local end_at, newest = writer.at, writer.stamp
        if end_at > 16777152 then
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
      local function copy(log, writer, at, units, stamp)
        local room = 256 - (writer.at - 4) % 256
        local to = at - (at - 4) % 256 + 256
        to = min(to, log.end_at, at + room)
        if room == 256 or (at - 4) % 256 == 0 or at >= to then
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
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        writer.at, writer.units = writer.at + size - writer.size, writer.units + size - writer.size
        writer.size, writer.stamp = size, stamp
        return at, units, stamp
      end
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
          fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
        end
        return first_at, first_stamp
      end
      local function dead_bytes(log)
        local first = block_of(log.head_at)
        local from = first == block_of(log.end_at - 1) and log.head_at or first * 256 + 4
        return max(0, log.footer - (log.end_at - from) - 4)
      end
      local function is_compaction_due(log)
        local dead = dead_bytes(log)
        return dead >= 8 and dead * 4 >= log.end_at - log.head_at
      end
      local function compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
        local writer, prefix = writer_at(4, 0, 0, 0), 'RLS\1'
        local head_at, head_units = 4, 0
        local first = block_of(log.head_at)
        if from_at == log.head_at then
        elseif first == block_of(from_at - 1) then
          local _, weight, behind = (search or make_search()).entry_at(log, log.head_at)
          if not weight then
            fail('ERR rl: the log at this key is damaged; RL.RESET removes it')
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
          writer.at = 4 + writer.size
          writer.units, writer.stamp = from_units - log.head_units, from_stamp
        else
          local begin = first * 256 + 4
          local text, base = (search or make_search()).text_of(log, begin, from_at)
          prefix = prefix .. sub(text, begin - base + 1, from_at - base)
          writer = writer_at(from_at - begin + 4, from_units, from_stamp, log.origin)
          head_at, head_units = log.head_at - begin + 4, log.head_units
        end
        local head_stamp
        head_at, head_stamp = put_rest(log, writer, from_at, head_at, log.head_stamp, new, rest_at, rest_units, rest_stamp)
        local footer = footer_of(writer, head_at, head_units, head_stamp, 0) or fail('ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units')
        log.is_compacted = true
        return {whole = prefix .. text_of_writer(writer) .. text_of_writer(footer)}
      end
      local function rewrite(log, compaction, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
        if compaction == 'due' and is_compaction_due(log) then
          return compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
        end
        local stamp = new and new.stamp < from_stamp and new.stamp or from_stamp
        local writer = writer_at(from_at, from_units, stamp, log.origin)
        local head_at, head_stamp =
          put_rest(log, writer, from_at, log.head_at, log.head_stamp, new, rest_at, rest_units, rest_stamp)
        local footer, gap = footer_of(writer, head_at, log.head_units, head_stamp, log.length)
        if not footer then
          if not compaction or dead_bytes(log) < 65536 then
            fail('ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units')
          end
          return compacted(log, from_at, from_units, from_stamp, new, rest_at, rest_units, rest_stamp)
        end
        if gap > 64 then
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
      local function first_rewritable(log)
        local first = block_of(log.end_at - 1) + 1 - 128
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
        if new.stamp > 281474976710655 then
          fail("ERR rl: the server's clock is before 1970 or after 10889")
        elseif units > 9007199254740991 - log.units then
          fail('ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units')
        elseif log.is_empty then
          local begun = writer_at(4, 0, 0, 0)
          push(begun, new.stamp, units)
          local footer = footer_of(begun, 4, 0, new.stamp, 0)
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
      return writer
    end
    local function plan(log, units, compaction)
      log.change, log.added = nil, units
      if units > 0 or log.is_pruned then
        (writer or make_writer()).commit(log, units, compaction)
      end
    end
    local function newest_stamp(log)
      local newest = log.is_empty and 0 or log.end_stamp
      return log.turn and log.turn > newest and log.turn or newest
    end
    local function apply(log, kept)
      local change, key = log.change, log.key
      local expiry = kept and (log.added > 0 or not log.is_empty) and renewed_expiry(log, not log.is_empty, newest_stamp)
      if change and change.removed then
        call('UNLINK', key)
      elseif change and change.whole then
        if expiry then
          call('SET', key, change.whole, 'PXAT', expiry)
        else
          call('SET', key, change.whole, 'KEEPTTL')
        end
      else
        if change then
          if change.first_text then
            call('SETRANGE', key, change.first_offset, change.first_text)
          end
          call('SETRANGE', key, change.offset, change.text)
        end
        if expiry then
          call('PEXPIREAT', key, expiry)
        end
      end
    end
    compact = {is_compact = true, read = read, plan = plan, apply = apply, newest_stamp = newest_stamp}
    function compact.complete()
      function compact.later_than(log, time)
        if log.is_empty or time >= log.end_stamp then
          return 0
        elseif time < log.head_stamp then
          return log.units
        end
        local _, _, units = seek(log, false, time)
        return log.end_units - units
      end
      compact.stamped_after = compact.later_than
      function compact.place_from(log)
        local first = log.is_empty and 0 or block_of(log.end_at - 1) + 1 - 116
        if log.is_empty or first <= block_of(log.head_at) then
          return log.now
        end
        local _, _, stamp = (search or make_search()).block_mark(log, first)
        return stamp > log.now and stamp or log.now
      end
      function compact.stamp_of(log, rank)
        if rank < log.units then
          local _, _, _, _, _, _, stamp = seek(log, true, log.end_units - rank - 1)
          return stamp
        end
      end
      compact.refundable = HELD and function(log, time)
        return (writer or make_writer()).refundable(log, time)
      end
      function compact.refund(log, units, time, compaction)
        return (writer or make_writer()).refund(log, units, time, compaction)
      end
      compact.is_nearly_full = not ONLY and function(log)
        return not log.is_empty and log.end_at > 16711616
      end
      compact.complete = nil
    end
    return compact
  end
  open_log = function(key, window, now, has_cost, prunes)
    if not has_cost then
      local store = sorted or make_sorted()
      local log = store.read(key, window, now, prunes)
      if log then
        return log, store
      end
    end
    local kind = call('TYPE', key).ok
    if kind == 'zset' then
      local store = sorted or make_sorted()
      return store.read(key, window, now, prunes), store
    elseif kind ~= 'string' and kind ~= 'none' then
      fail('WRONGTYPE Operation against a key holding the wrong kind of value')
    end
    local store = compact or make_compact()
    return store.read(key, window, now, kind == 'string'), store
  end
  return open_log
end
local in_cluster = not KEEPS_STATE and 'unknown' or nil
local counter_name = (HELD or not ONLY or ONLY == 'fixed') and function(key, suffix, declared)
  local plain = key .. ':' .. suffix
  if declared then
    local braced = '{' .. key .. '}:' .. suffix
    return declared[plain] and plain or declared[braced] and braced
      or fail("ERR the call needs its counter among the keys: '" .. plain .. "', in a cluster '" .. braced .. "'")
  end
  local is_tagged = find(key, '^[^{]*{[^}]+}')
  if in_cluster == nil or in_cluster == 'unknown' and not is_tagged then
    in_cluster = 'unknown'
    local info = redis.pcall('INFO', 'cluster')
    if type(info) == 'string' then
      in_cluster = find(info, 'cluster_enabled:1', 1, true) ~= nil
    else
      local slot = redis.pcall('CLUSTER', 'KEYSLOT', '')
      if type(slot) == 'number' then
        in_cluster = true
      elseif find(tostring(slot.err), 'cluster support disabled', 1, true) then
        in_cluster = false
      end
    end
  end
  if is_tagged or in_cluster ~= true then
    return plain
  elseif key == '' or find(key, '}', 1, true) then
    fail("ERR key cannot be used in cluster mode: its braces leave no name for the counter in the key's own slot; "
      .. 'give it a hash tag, as in {user7}:login')
  end
  return '{' .. key .. '}:' .. suffix
end
local check_missing = not PLAIN and (HELD or not ONLY or ONLY == 'fixed') and function(key, name, declared)
  if in_cluster ~= false and not declared then
    call('EXISTS', key, name)
  end
end
local plain_sliding = (not ONLY or PLAIN and ONLY == 'sliding') and function(key, window, limit, cost)
  local log, store = (open_log or make_logs())(key, window, clock(), cost, not cost or cost <= 1000)
  local needed = cost or 1
  if needed > 1000 and not store.is_compact then
    fail('ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)')
  end
  local used = log.units - log.beyond
  local allowed = limit - used >= needed
  store.plan(log, allowed and needed or 0, 'due')
  store.apply(log, true)
  return {allowed and 1 or 0, used, math.ceil(window / 1000)}
end
local plain_fixed = (not ONLY or PLAIN and ONLY == 'fixed') and function(key, window, limit, declared)
  local now = clock()
  local name = counter_name(key, format('%d', floor(now / window)), declared)
  if in_cluster ~= false and not declared and type(redis.pcall('EXISTS', key, name)) == 'table'
    and redis.pcall('EXISTS', name) ~= 1 then
    call('EXISTS', key, name)
  end
  local count = call('INCR', name)
  local expiry = count ~= 1 and expiry_of(name, now)
  if not expiry then
    expiry = now + window
    call('PEXPIREAT', name, expiry)
  end
  local left = expiry > now and expiry - now or 0
  return {count <= limit and 1 or 0, count, floor((left + 500) / 1000)} -- Rounded as the TTL command does it.
end
local run = nil
local make_run = not PLAIN and function()
  local ceil, max, min, sub, lower, upper = math.ceil, math.max, math.min, string.sub, string.lower, string.upper
  local budget = nil
  local function new_budget(compaction)
    return {lookups = 1024, work = 1000, removed = 1000, compaction = compaction}
  end
  local function bad_words(command, syntax)
    local _, _, name, words = find(syntax, '^(%u+) (.*)$')
    if command ~= lower(name) then
      _, _, words = find(syntax, '^(.*) %[')
      local waits, gsub = find(words, 'WITHIN ms]', 1, true), string.gsub
      words = gsub(gsub(words, ' | WITHIN ms%]', ']'), ' %[WITHIN ms%]', '')
      words = command == 'refund' and gsub(words, ' %[HOLD.-%]', '') .. ' [AT ms]' or command == 'settle' and words .. ' ACTUAL n'
        or words .. ((waits or command == 'all') and ' [WITHIN ms]' or '') .. (command == 'peek' and ' [FULL | EACH]' or ' [FULL]')
    end
    fail('ERR syntax error: expected ' .. words)
  end
  local function wait_of(word)
    return within(word, 0, 3600000) or fail('ERR WITHIN must be an integer number of milliseconds from 0 to 3600000')
  end
  local function options(rule, words, at, command, syntax)
    while words[at] do
      local option = upper(words[at])
      if rule[option] then
        break
      elseif option == 'COST' or option == 'HOLD' or option == 'FORCE' or option == 'ANCHORED' then
        if not find(syntax, '[' .. option, 1, true) or option == 'HOLD' and command == 'refund' then
          break
        elseif option == 'HOLD' then
          rule.holder, rule.lease = words[at + 1], words[at + 2] or bad_words(command, syntax)
          if #rule.holder < 1 or #rule.holder > 256 then
            fail('ERR holder must be 1 to 256 bytes long')
          end
          rule.lease = window_of(rule.lease, 'leaseSec')
          at = at + 2
        elseif option == 'COST' then
          at = at + 1
          local least = (command == 'peek' or command == 'all') and 0 or 1
          rule.cost = within(words[at] or bad_words(command, syntax), least, 9007199254740991)
            or fail(least == 1 and 'ERR COST must be an integer from 1 to 9007199254740991' or 'ERR COST must be an integer from 0 to 9007199254740991')
        end
      elseif option == 'WITHIN' and find(syntax, 'WITHIN ms]', 1, true)
        and not (command == 'all' or command == 'refund' or command == 'settle') then
        at = at + 1
        rule.within = wait_of(words[at] or bad_words(command, syntax))
      elseif option == 'AT' and command == 'refund' then
        at = at + 1
        rule.at = within(words[at] or bad_words(command, syntax), 0, 9007199254740991) or fail('ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991')
      elseif option == 'ACTUAL' and command == 'settle' then
        at = at + 1
        rule.actual = within(words[at] or bad_words(command, syntax), 0, 9007199254740991)
          or fail('ERR ACTUAL must be an integer from 0 to 9007199254740991')
      elseif (option == 'FULL' or option == 'EACH' and (command == 'peek' or find(syntax, '| EACH]', 1, true)))
        and command ~= 'all' and command ~= 'refund' and command ~= 'settle' and not rule.FULL and not rule.EACH then
      else
        break
      end
      rule[option] = true
      at = at + 1
    end
    if words[at] and command ~= 'all' then
      bad_words(command, syntax)
    end
    return at
  end
  local function is_longer(window, last)
    return last < 0 and window < last or last >= 0 and (window < 0 or window > last)
  end
  local quotas_and_options = ONLY ~= 'throttle' and ONLY ~= 'acquire' and function(words, at, command, syntax)
    local rule = {windows = {}, limits = {}, cost = 1}
    local count = 0
    repeat
      if not (words[at] and words[at + 1]) then
        fail(format("ERR wrong number of arguments for 'rl.%s' command", command))
      end
      local window = window_of(words[at])
      local limit = within(words[at + 1], 0, 9007199254740991) or fail('ERR limit must be an integer from 0 to 9007199254740991')
      if count > 0 and not is_longer(window, rule.windows[count]) then
        fail('ERR windowSec must increase from one window to the next')
      elseif count == 16 then
        fail('ERR windowSec and limit can be given for at most 16 windows')
      end
      count = count + 1
      rule.windows[count], rule.limits[count] = window, limit
      at = at + 2
    until not (words[at] and find(words[at], '^[%d+.@-]'))
    rule.count, rule.longest = count, rule.windows[count]
    at = options(rule, words, at, command, syntax)
    if rule.HOLD and rule.cost == 0 then
      fail('ERR COST must be an integer from 1 to 9007199254740991')
    elseif rule.WITHIN and (rule.FORCE or rule.HOLD) then
      fail('ERR WITHIN takes neither FORCE nor HOLD')
    end
    rule.needed = max(1, rule.cost) -- COST 0 asks whether there is room for a unit.
    return rule, at
  end
  local read_integer = ONLY ~= 'sliding' and ONLY ~= 'acquire' and function(text)
    local _, _, sign, digits = find(text, '^(-?)([1-9]%d*)$')
    if text == '0' then
      return 0
    end
    local last = sign == '' and '9223372036854775807' or '9223372036854775808'
    if not digits or #digits > 19 or #digits == 19 and digits > last then
      fail('ERR value is not an integer or out of range')
    end
    return tonumber(text)
  end
  local several = nil
  local make_several = ONLY ~= 'throttle' and ONLY ~= 'acquire' and function()
    several = {}
    function several.binding_of(kind, rule, state)
      local denying = 0
      for index = 1, rule.count do
        if not state.quotas[index].allowed then
          denying = denying + 1
        end
      end
      local binding, longest, fewest
      for index = 1, rule.count do
        local quota = state.quotas[index]
        if denying == 0 or not quota.allowed then
          local wait = denying > 1 and (quota.retry or kind.retry_of(rule, state, index)) or 0
          wait = wait < 0 and math.huge or wait
          local free = quota.limit - quota.used
          if not binding or wait > longest or wait == longest and free < fewest then
            binding, longest, fewest = quota, wait, free
          end
        end
      end
      return binding
    end
    function several.statuses(kind, rule, state, each, status)
      if not each then
        local binding = status(rule, state, state.binding)
        binding.allowed, binding.retry = state.allowed, kind.retry(rule, state)
        return {binding}
      end
      local statuses = {}
      for index = 1, rule.count do
        local quota = state.quotas[index]
        local retry = quota.allowed and 0 or kind.retry_of(rule, state, index)
        statuses[index] = status(rule, state, quota)
        statuses[index].allowed, statuses[index].retry = quota.allowed, retry
      end
      return statuses
    end
    return several
  end
  local held = nil
  local make_held = HELD and function()
    local function score_of(holder)
      local hash = 0
      for index = 1, #holder do
        hash = (hash * 31 + string.byte(holder, index)) % 281474976710656
      end
      return format('%.0f', 1125899906842624 + hash)
    end
    local function parse(member, holder)
      local head, ends, place = sub(member, 1, 33), {}, 34
      local piece = sub(member, place, place + 16)
      while #piece == 17 and find(piece, '^@%d+$') do
        ends[#ends + 1], place = tonumber(sub(piece, 2)), place + 17
        piece = sub(member, place, place + 16)
      end
      local units = #head == 33 and find(head, '^h%d+$') and tonumber(sub(head, 2, 17))
      local at = units and tonumber(sub(head, 18))
      if units and units <= 9007199254740991 and at < 1125899906842624 and sub(member, place) == ' ' .. holder then
        return {holder = holder, member = member, units = units, at = at, ends = ends}
      end
    end
    local function note_of(holds, holder, ends)
      if tonumber(ends) <= 0 or tonumber(ends) >= 1125899906842624 then
        fail('WRONGTYPE Operation against a key holding the wrong kind of value')
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
      if units < 0 or units > 9007199254740991 or units % 1 ~= 0 then
        fail('WRONGTYPE Operation against a key holding the wrong kind of value')
      end
      return {holder = holder, member = 's' .. holder, units = units, is_settled = true}
    end
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
    local function open(rule, key, now, declared)
      local holds = read(rule, key, now, declared)
      if holds.own and holds.own.is_settled then
        fail('ERR this hold is settled: a new request takes a new holder')
      elseif holds.own and holds.own.units ~= rule.cost then
        fail('ERR the hold of this holder has another COST')
      end
      return holds
    end
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
    local function find_ended(kind, rule, key, holds, declared)
      local notes, own, ended = {}, nil, {}
      local members = call('ZRANGEBYSCORE', holds.name, '(0', holds.now, 'LIMIT', 0, budget.work) -- Each takes some work.
      for index = 1, #members do
        local holder = sub(members[index], 2)
        if holder ~= rule.holder then
          notes[#notes + 1] = sub(members[index], 1, 1) == 'e' and note_of(holds, holder, holds.now) or fail('WRONGTYPE Operation against a key holding the wrong kind of value')
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
          cost, refund.cost = max(1, note.units), min(note.units, 1000)
        elseif refund then
          cost = kind.plan and 250 or rule.count
        end
        if note ~= own and budget.work < 1000 and cost > budget.work then
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
    local function give_back(kind, key, holds, ended, declared)
      for index = 1, #ended do
        local note = ended[index]
        if note.refund then
          kind.refund(note.refund, kind.read(note.refund, key, holds.now, nil, nil, declared, false, true))
        end
        call('ZREM', holds.name, 'e' .. note.holder, note.member)
      end
    end
    local function leave_out(kind, holds, ended, state)
      for index = 1, #ended do
        holds.members = holds.members - 2
        if ended[index].refund then
          kind.leave_out(ended[index].refund, state)
        end
      end
    end
    local function check_room(holds)
      if holds.members >= 2 * 1048576 then
        fail('ERR rl: this key has 1048576 holds, the most there may be; RL.SETTLE ends a hold')
      end
    end
    local function live_until(holds, time)
      local wanted, expiry = ceil(time / 1000) * 1000, expiry_of(holds.name, holds.now)
      if not expiry or wanted > expiry then
        call('PEXPIREAT', holds.name, wanted)
        return wanted
      end
      return expiry
    end
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
    local function settle(rule, holds, actual)
      local ends = holds.now + max(rule.lease, 60000)
      call('ZADD', holds.name, ends, 'e' .. rule.holder, format('%.0f', -1 - actual), 's' .. rule.holder)
      if holds.own then
        call('ZREM', holds.name, holds.own.member)
      end
      local expiry = live_until(holds, ends)
      if expiry - ends > 3600000 and call('ZCOUNT', holds.name, 1125899906842624, '+inf') == 0 then
        local last = call('ZREVRANGEBYSCORE', holds.name, format('(%.0f', 1125899906842624), 0, 'WITHSCORES', 'LIMIT', 0, 1)[2]
        last = ceil(tonumber(last) / 1000) * 1000
        if expiry - last > 3600000 then
          call('PEXPIREAT', holds.name, last)
        end
      end
    end
    local function check_memory(rule, holds)
      call('ZADD', holds.name, 'XX', holds.ends, 'e' .. rule.holder)
    end
    held = {
      read = read, open = open, find_ended = find_ended, give_back = give_back, leave_out = leave_out, check_room = check_room, check_memory = check_memory, apply = apply, settle = settle,
    }
    return held
  end
  local make_sliding = (not ONLY or ONLY == 'sliding') and function()
    local sliding = nil
    local function judge(rule, state)
      local log = state.log
      state.quotas, state.allowed = {}, true
      for index = 1, rule.count do
        local used = rule.count == 1 and not state.turn_in and log.units - log.beyond or sliding.used(rule, state, index)
        local allowed = rule.limits[index] - used >= rule.needed
        state.quotas[index] =
          {limit = rule.limits[index], window = rule.windows[index], before = used, used = used, allowed = allowed}
        state.allowed = state.allowed and allowed
      end
    end
    local function verdict(rule, state)
      local log, store = state.log, state.store
      if rule.cost > 1000 and not store.is_compact then
        fail('ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)')
      elseif rule.count > 1 then
        sliding.complete()
        state.newer = store.stamped_after(log, state.now)
      else
        state.newer = log.beyond
      end
      judge(rule, state)
      if rule.WITHIN then
        sliding.complete()
        sliding.wait(rule, state)
      end
    end
    local function decide(rule, state, counts, is_short)
      local quotas = state.quotas
      local binding = quotas[1]
      state.added = counts and rule.FORCE and rule.cost or 0
      if rule.count > 1 then
        for index = 1, rule.count do
          quotas[index].retry = quotas[index].allowed and 0 or sliding.retry_of(rule, state, index)
        end
        binding = (several or make_several()).binding_of(sliding, rule, state)
      elseif not binding.allowed and not is_short then
        sliding.complete()
        binding.retry = sliding.retry_of(rule, state, 1)
      end
      state.retry = binding.retry or 0
      if binding.allowed then
        state.added = counts and rule.cost or 0
      elseif state.retry > 0 and rule.count > 1 and (state.newer > 0 or state.added > 0) then
        state.retry = sliding.retry_in_all(rule, state, state.retry)
      end
      state.retry = state.late or state.retry
      for index = 1, rule.count do
        quotas[index].used = quotas[index].before + state.added
      end
      state.binding = binding
    end
    local ROUNDS_OF_A_QUEUE, LONG_QUEUE = 6, 48
    local function complete()
      if sliding.statuses then
        return
      end
      local function stamp_of(state, rank)
        local log, store = state.log, state.store
        if state.added > 0 then
          state.later = state.later or store.stamped_after(log, state.now)
          if rank >= state.later then
            if rank < state.later + state.added then
              return state.now
            end
            rank = rank - state.added
          end
        end
        return store.stamp_of(log, rank)
      end
      local function room_at(rule, state, windows, leftovers, from)
        local log, store, at = state.log, state.store, from
        local is_exact, rounds = state.newer > 0, not state.may_wait and math.huge or log.beyond > LONG_QUEUE and 1 or ROUNDS_OF_A_QUEUE
        repeat
          local begun = at
          is_exact, rounds = is_exact and rounds > 0 and budget.lookups >= #windows, rounds - 1
          budget.lookups = is_exact and budget.lookups - #windows or budget.lookups
          for index = 1, #windows do
            local ahead = is_exact and store.stamped_after(log, at + windows[index]) or 0
            local stamp = stamp_of(state, leftovers[index] + ahead)
            at = stamp and max(at, stamp + windows[index]) or at
          end
        until not is_exact or at == begun
        return at
      end
      local function wait(rule, state, window, leftover)
        return room_at(rule, state, {window}, {leftover}, state.now) - state.now
      end
      local function leftover(rule, state, index)
        return rule.limits[index] - rule.needed - state.log.permanent
      end
      function sliding.retry_of(rule, state, index)
        local left = leftover(rule, state, index)
        local after = left >= 0 and wait(rule, state, rule.windows[index], left) or 0
        return after > 0 and after or -1
      end
      function sliding.retry_in_all(rule, state, after)
        local windows, leftovers = {}, {}
        for index = 1, rule.count do
          local left = leftover(rule, state, index)
          if left >= 0 then
            windows[#windows + 1], leftovers[#windows + 1] = rule.windows[index], left
          end
        end
        return room_at(rule, state, windows, leftovers, state.now + after) - state.now
      end
      function sliding.used(rule, state, index)
        local log, store, window = state.log, state.store, rule.windows[index]
        if index == rule.count and not state.turn_in then
          return log.units - log.beyond
        end
        local used = store.later_than(log, state.now - window)
        return state.newer > 0 and used - store.stamped_after(log, state.now + window) or used
      end
      function sliding.retry(_, state)
        return state.retry
      end
      local function status(rule, state, quota)
        local next_after, left = 0, min(quota.used, quota.limit) - 1 - state.log.permanent
        if quota.used > 0 then
          next_after = left < 0 and -1 or wait(rule, state, quota.window, left)
        end
        local reset, turn_in = wait(rule, state, quota.window, 0), state.turn_in or 0
        return {
          limit = quota.limit, used = quota.used, next = next_after < 0 and -1 or next_after + turn_in, reset = reset + turn_in,
          window = quota.window, at = state.now,
        }
      end
      function sliding.statuses(rule, state, each)
        local statuses = (several or make_several()).statuses(sliding, rule, state, each, status)
        for index = 1, state.late and each and #statuses or 0 do
          local own = statuses[index]
          own.retry = own.window == state.binding.window and state.late or own.retry > 0 and max(0, own.retry - state.within) or own.retry
          own.allowed = own.retry == 0
        end
        return statuses
      end
      function sliding.first_room(rule, state, from)
        local windows, leftovers, newer = {}, {}, state.newer
        for index = 1, rule.count do
          windows[index], leftovers[index] = rule.windows[index], leftover(rule, state, index)
          if leftovers[index] < 0 then
            return nil
          end
        end
        state.may_wait, state.newer = true, state.store.stamped_after(state.log, from)
        local room = room_at(rule, state, windows, leftovers, from)
        state.newer = newer
        return room
      end
      function sliding.outlook(rule, state)
        local room = sliding.first_room(rule, state, state.now)
        return room, rule.cost > 0 and state.store.place_from(state.log, rule.cost) or state.now
      end
      function sliding.retry_within(room, place, within, now)
        return room and max(0, room - now - within, min(place - now, room - now)) or -1
      end
      function sliding.take(rule, state, turn)
        state.late = nil
        if turn > state.now then
          state.turn_in, state.now, state.log.turn = turn - state.now, turn, rule.cost > 0 and turn
          state.newer = state.store.stamped_after(state.log, turn)
          judge(rule, state)
        end
      end
      function sliding.wait(rule, state)
        state.may_wait, state.shows_wait, state.within = true, true, rule.cost > 0 and rule.within or 0
        if not state.allowed then
          local room, place = sliding.outlook(rule, state)
          local late = sliding.retry_within(room, place, state.within, state.now)
          if late == 0 then
            sliding.take(rule, state, room)
          else
            state.late = late
          end
        end
      end
      sliding.leave_out = HELD and function(rule, state)
        if not state.leave_out then
          local log, store, left_out = state.log, state.store, {}
          if store.complete then
            store.complete()
          end
          local rest = {units = log.units, beyond = log.beyond, permanent = log.permanent}
          local function left_out_after(time)
            local units = 0
            for index = 1, #left_out do
              units = units + (left_out[index].at > time and left_out[index].units or 0)
            end
            return units
          end
          state.log, state.store = rest, {
            is_compact = store.is_compact,
            plan = function() end, -- It is not asked whether there is room in the log.
            later_than = function(_, time)
              return store.later_than(log, time) - left_out_after(time)
            end,
            stamped_after = function(_, time)
              return store.stamped_after(log, time) - left_out_after(time)
            end,
            stamp_of = function(_, rank)
              for index = 1, #left_out do
                rank = rank < left_out[index].newer and rank or rank + left_out[index].units
              end
              return store.stamp_of(log, rank)
            end,
          }
          state.leave_out = function(units, at)
            local place = 1
            while left_out[place] and left_out[place].at > at do
              place = place + 1
            end
            local part = left_out[place]
            if not part or part.at < at then
              part = {at = at, units = 0, there = store.refundable(log, at), newer = store.stamped_after(log, at)}
              table.insert(left_out, place, part)
            end
            units = min(units, part.there - part.units)
            part.units, rest.units = part.units + units, rest.units - units
            rest.beyond = at > log.now + log.window and rest.beyond - units or rest.beyond
          end
        end
        state.leave_out(rule.cost, rule.at)
      end
      function sliding.refund(rule, state)
        local log, store, now, window, at = state.log, state.store, state.now, rule.windows[1], rule.at
        local taken = store.refund(log, rule.cost, at, budget.compaction)
        budget.compaction = not log.is_compacted and budget.compaction
        state.newer = 1 -- There may be some.
        local used = sliding.used(rule, state, 1)
        local gone = taken
        if at then
          gone = at > now - window and at <= now + window and taken or 0
        elseif taken > 0 and rule.count > 1 then
          local later = store.stamped_after(log, now) - store.stamped_after(log, now + window)
          gone = min(taken, max(0, used - log.permanent - later))
        end
        store.apply(log, false)
        return {taken, used - gone, ceil(window / 1000)}
      end
    end
    local function parse(words, at, command)
      local rule, behind = quotas_and_options(words, at, command, 'SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]')
      if rule.longest < 0 then
        fail(format('ERR %s must be a number of seconds from 0.001 to 2147483647 with at most three decimal places', 'windowSec'))
      end
      rule.counts = rule.FORCE
      return rule, behind
    end
    local function read(rule, key, now, _, _, _, prunes)
      local log, store = (open_log or make_logs())(key, rule.longest, now, rule.COST, prunes and rule.cost <= 1000)
      if store.complete and (sliding.statuses or rule.count > 1 or rule.FULL or rule.EACH or rule.WITHIN) then
        store.complete()
      end
      return {log = log, store = store, now = now, added = 0}
    end
    local function plan(state)
      state.store.plan(state.log, state.added, budget.compaction)
      budget.compaction = not state.log.is_compacted and budget.compaction
    end
    local function reply(rule, state)
      local binding = state.binding
      return {state.allowed and 1 or 0, binding.before, ceil(binding.window / 1000), rule.WITHIN and (state.turn_in or 0)}
    end
    local function apply(_, state)
      state.store.apply(state.log, true)
    end
    local set_missing_expiry = not ONLY and function(_, state)
      local log = state.log
      if log.units > 0 and not expiry_of(log.key, log.now) then
        local newest = log.beyond > 0 and state.store.newest_stamp(log) or 0
        call('PEXPIREAT', log.key, max(log.now + log.window, newest) + log.window)
      end
    end
    sliding = {
      syntax = 'SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]', parse = parse, read = read, verdict = verdict, decide = decide, plan = plan, reply = reply,
      apply = apply, set_missing_expiry = set_missing_expiry, complete = complete,
    }
    return sliding
  end
  local make_fixed = (not ONLY or ONLY == 'fixed') and function()
    local fixed = nil
    local function check_overflow(text, cost)
      local high, low = tonumber(string.sub(text, 1, -10)), tonumber(string.sub(text, -9)) + cost % 1e9
      high, low = high + floor(cost / 1e9) + floor(low / 1e9), low % 1e9
      if high > 9223372036 or high == 9223372036 and low > 854775807 then
        fail('ERR increment or decrement would overflow')
      end
    end
    local function verdict(rule, state)
      state.allowed = true
      for index = 1, rule.count do
        local quota = state.quotas[index]
        quota.allowed = quota.limit - quota.value >= rule.needed
        state.allowed = state.allowed and quota.allowed
      end
    end
    local function decide(rule, state, counts)
      counts = counts and rule.cost > 0
      state.counts = counts
      for index = 1, rule.count do
        local quota = state.quotas[index]
        quota.used, quota.expiry_after = quota.value, quota.expiry
        if counts and not quota.is_over then
          if #quota.text >= 19 and quota.value > 0 then
            check_overflow(quota.text, rule.cost)
          end
          quota.used = quota.value + rule.cost
          if not quota.expiry or quota.value == 0 then
            quota.expiry_after, quota.renewed = state.now + quota.life, true
          end
        end
      end
      state.binding = state.quotas[1]
      if rule.count > 1 then
        fixed.complete()
        state.binding = (several or make_several()).binding_of(fixed, rule, state)
      end
    end
    local function complete()
      if fixed.statuses then
        return
      end
      local function fresh_after(rule, state, quota)
        local at = quota.ends or quota.expiry_after or state.now + quota.life
        if not (rule.ANCHORED or quota.ends) then
          local window = quota.window
          local next_window = (floor(state.now / window) + 1) * window
          at = quota.expiry_after and min(next_window, quota.expiry_after + 1) or next_window
        end
        return max(1, at - state.now)
      end
      function fixed.retry_of(rule, state, index)
        local quota = state.quotas[index]
        return rule.needed > quota.limit and -1 or fresh_after(rule, state, quota)
      end
      function fixed.retry(rule, state)
        local longest = 0
        for index = 1, state.allowed and 0 or rule.count do
          local quota = state.quotas[index]
          if not quota.allowed or quota.limit - quota.used < rule.needed then
            local wait = fixed.retry_of(rule, state, index)
            if wait < 0 then
              return -1
            end
            longest = max(longest, wait)
          end
        end
        return longest
      end
      local function status(rule, state, quota)
        local fresh = quota.used > 0 and fresh_after(rule, state, quota) or 0
        local next_after = quota.used > 0 and quota.limit == 0 and -1 or fresh
        return {
          limit = quota.limit, used = quota.used, next = next_after, reset = fresh, window = max(0, quota.window),
          at = state.now,
        }
      end
      function fixed.statuses(rule, state, each)
        return (several or make_several()).statuses(fixed, rule, state, each, status)
      end
      local function refundable(rule, quota, now)
        local at = rule.at
        local in_window = not at
        if quota.ends then
          in_window = not quota.is_over
        elseif at and rule.ANCHORED then
          in_window = quota.expiry and at >= quota.expiry - quota.window and at < quota.expiry
        elseif at then
          in_window = floor(at / quota.window) == floor(now / quota.window)
        end
        return quota.exists and in_window and max(0, min(rule.cost, quota.value)) or 0
      end
      fixed.leave_out = HELD and function(rule, state)
        local place = 1
        for index = 1, #state.quotas do
          local quota = state.quotas[index]
          if quota.window == rule.windows[place] then
            quota.value, place = quota.value - refundable(rule, quota, state.now), place + 1
          end
        end
      end
      function fixed.refund(rule, state)
        local now, most = state.now, 0
        for index = rule.count, 1, -1 do
          local quota = state.quotas[index]
          local units = refundable(rule, quota, now)
          if units > 0 then
            call('INCRBY', quota.name, format('-%.0f', units))
            most, quota.value = max(most, units), quota.value - units
          end
        end
        local first = state.quotas[1]
        local expiry = first.ends or first.expiry or now + first.life
        return {most, first.value, floor((max(0, expiry - now) + 500) / 1000)}
      end
    end
    local function suffix_of(window, now, anchored)
      if window < 0 then
        return format('@%d', -1 - window)
      elseif not anchored then
        return format('%d', floor(now / window))
      end
      local text, places = format('%d', floor(window / 1000)), window % 1000
      if places > 0 then
        text = text .. string.gsub(format('.%03d', places), '0+$', '')
      end
      return text .. 's'
    end
    local function read(rule, key, now, _, _, declared, _, may_have_ended)
      local state = {now = now, quotas = {}}
      local shorter
      for index = 1, rule.count do
        local window = rule.windows[index]
        local quota = {limit = rule.limits[index], window = window, life = window} -- How long a counter lives that begins now.
        local suffix = suffix_of(window, now, rule.ANCHORED)
        if window < 0 then
          quota.ends, quota.life = -1 - window, 3600000 - 1 - window - now
          quota.is_over = quota.ends <= now
          if quota.is_over and not may_have_ended then
            fail('ERR the window has ended')
          elseif quota.ends - now > 2147483647 * 1000 then
            fail('ERR @ms must be at most 2147483647 seconds ahead')
          end
        end
        if quota.is_over then
          quota.value, quota.text = 0, '0'
        elseif suffix == shorter then
          fail('ERR two windows would share a counter') -- Long windows of nearly equal length can have the same number.
        else
          quota.name = counter_name(key, suffix, declared)
          local text = call('GET', quota.name)
          if text then
            quota.exists, quota.text = true, text
            quota.value, quota.expiry = read_integer(text), expiry_of(quota.name, now)
            if rule.ANCHORED and quota.expiry and now >= quota.expiry then
              quota.exists, quota.value, quota.expiry, quota.text = false, 0, nil, '0' -- Its window is over.
            end
          else
            check_missing(key, quota.name, declared)
            quota.value, quota.text = 0, '0'
          end
        end
        state.quotas[index], shorter = quota, suffix
      end
      return state
    end
    local function set_missing_expiry(rule, state)
      for index = 1, rule.count do
        local quota = state.quotas[index]
        if quota.exists and not quota.expiry then
          call('PEXPIREAT', quota.name, state.now + quota.life)
        end
      end
    end
    local function apply(rule, state)
      if not state.counts then
        return set_missing_expiry(rule, state)
      end
      for index = rule.count, 1, -1 do
        local quota = state.quotas[index]
        if quota.exists then
          call('INCRBY', quota.name, format('%.0f', rule.cost))
          if quota.renewed then
            call('PEXPIREAT', quota.name, quota.expiry_after)
          end
        elseif not quota.is_over then
          call('SET', quota.name, format('%.0f', rule.cost), 'PXAT', quota.expiry_after)
        end
      end
    end
    local function parse(words, at, command)
      local rule, behind = quotas_and_options(words, at, command, 'FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]')
      if rule.ANCHORED and rule.longest < 0 then
        fail('ERR ANCHORED takes no @ms')
      end
      rule.counts = rule.FORCE or rule.cost == 1 and rule.count == 1 and not rule.HOLD -- The plain form counts its denials.
      return rule, behind
    end
    local function reply(_, state)
      local quota = state.binding
      local left = max(0, (quota.ends or quota.expiry_after or state.now + quota.life) - state.now)
      return {state.allowed and 1 or 0, quota.used, floor((left + 500) / 1000)} -- Rounded as the TTL command does it.
    end
    fixed = {
      syntax = 'FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]', parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
      set_missing_expiry = set_missing_expiry, has_counters = true, suffix_of = suffix_of, complete = complete,
    }
    return fixed
  end
  local make_throttle = (not ONLY or ONLY == 'throttle') and function()
    local throttle = nil
    local function at_most(seconds, nanos, seconds_most, nanos_most)
      return seconds < seconds_most or seconds == seconds_most and nanos <= nanos_most
    end
    local function plus(seconds, nanos, more_seconds, more_nanos)
      seconds, nanos = seconds + more_seconds, nanos + more_nanos
      if nanos >= 1000000000 then
        return seconds + 1, nanos - 1000000000
      end
      return seconds, nanos
    end
    local function minus(seconds, nanos, less_seconds, less_nanos)
      seconds, nanos = seconds - less_seconds, nanos - less_nanos
      if nanos < 0 then
        return seconds - 1, nanos + 1000000000
      end
      return seconds, nanos
    end
    local function times(seconds, nanos, factor)
      local low, middle, high = factor % 1e6, floor(factor / 1e6) % 1e6, floor(factor / 1e12)
      local first, second = nanos * low, nanos * middle
      local rest = first % 1000000000 + second % 1000 * 1e6
      seconds = seconds * factor + floor(first / 1000000000) + floor(second / 1000) + nanos * high * 1000
        + floor(rest / 1000000000)
      return seconds, rest % 1000000000
    end
    local function divided(seconds, nanos, by_seconds, by_nanos)
      local quotient = floor((seconds * 1000000000 + nanos) / (by_seconds * 1000000000 + by_nanos))
      if quotient >= 9007199254740991 then
        return quotient
      end
      local product_seconds, product_nanos = times(by_seconds, by_nanos, quotient)
      while not at_most(product_seconds, product_nanos, seconds, nanos) do
        quotient = quotient - 1
        product_seconds, product_nanos = times(by_seconds, by_nanos, quotient)
      end
      while true do
        product_seconds, product_nanos = times(by_seconds, by_nanos, quotient + 1)
        if not at_most(product_seconds, product_nanos, seconds, nanos) then
          return quotient
        end
        quotient = quotient + 1
      end
    end
    local function to_millis(seconds, nanos)
      return seconds * 1000 + ceil(nanos / 1e6)
    end
    local function check_time(seconds, nanos)
      if not at_most(seconds, nanos, 9223372036, 854775807) then
        fail('ERR rl: RL.THROTTLE cannot count beyond 2262-04-11')
      end
    end
    local function interval_of(period, count)
      if count <= 9e6 then
        local rest = period % count * 1000000000
        local more = rest % count
        return plus((period - period % count) / count, (rest - more) / count, 0, more > 0 and 1 or 0)
      end
      local by_seconds, by_nanos = floor(count / 1000000000), count % 1000000000
      local nanos = divided(period, 0, by_seconds, by_nanos)
      if nanos > 0 then
        local seconds, rest = times(by_seconds, by_nanos, nanos)
        nanos = (seconds == period and rest == 0) and nanos or nanos + 1
        return floor(nanos / 1000000000), nanos % 1000000000
      end
    end
    local function intervals(rule, factor)
      if (rule.seconds * 1000000000 + rule.nanos) * factor < 1e19 then
        return times(rule.seconds, rule.nanos, factor)
      end
    end
    local function verdict(rule, state)
      state.shows_wait = rule.WITHIN
      state.asked_seconds, state.asked_nanos = intervals(rule, rule.quantity)
      if not state.asked_seconds
        or not at_most(state.asked_seconds, state.asked_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
        state.allowed, state.wait = false, -1
        return
      end
      local seconds, nanos = plus(state.debt_seconds, state.debt_nanos, state.asked_seconds, state.asked_nanos)
      state.allowed, state.wait = at_most(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos), 0
      if state.allowed then
        return
      end
      seconds, nanos = minus(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos)
      state.wait = to_millis(seconds, nanos)
      if rule.WITHIN and rule.quantity > 0 then
        local turn_in = state.wait
        state.wait = max(0, turn_in - rule.within)
        state.allowed = state.wait == 0
        if state.allowed then
          state.turn_in, state.over_seconds, state.over_nanos = turn_in, seconds, nanos
          state.turn_at = to_millis(plus(state.seconds, state.nanos, seconds, nanos))
        end
      end
    end
    local function decide(rule, state, counts)
      state.ahead_seconds, state.ahead_nanos = state.debt_seconds, state.debt_nanos
      state.counts = counts and state.allowed and rule.quantity > 0
      check_time(state.seconds, state.nanos)
      if state.allowed then
        local seconds, nanos = plus(state.debt_seconds, state.debt_nanos, state.asked_seconds, state.asked_nanos)
        check_time(plus(state.seconds, state.nanos, seconds, nanos))
        if state.counts then
          state.ahead_seconds, state.ahead_nanos = seconds, nanos
        end
      end
      state.remaining = 0
      if at_most(state.ahead_seconds, state.ahead_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
        local seconds, nanos =
          minus(rule.tolerance_seconds, rule.tolerance_nanos, state.ahead_seconds, state.ahead_nanos)
        state.remaining = divided(seconds, nanos, rule.seconds, rule.nanos)
      end
      state.binding = {limit = rule.limit, used = rule.limit - state.remaining}
    end
    local function complete()
      if throttle.statuses then
        return
      end
      local function used_by(rule, seconds, nanos)
        local used = divided(seconds, nanos, rule.seconds, rule.nanos)
        local product_seconds, product_nanos = times(rule.seconds, rule.nanos, used)
        return (product_seconds == seconds and product_nanos == nanos) and used or used + 1
      end
      function throttle.retry(_, state)
        return state.wait
      end
      function throttle.statuses(rule, state)
        local used, next_after = used_by(rule, state.ahead_seconds, state.ahead_nanos), 0
        if state.turn_at then
          used = used_by(rule, minus(state.ahead_seconds, state.ahead_nanos, state.over_seconds, state.over_nanos)) -- As of the turn.
        end
        if used > 0 then
          local seconds, nanos = times(rule.seconds, rule.nanos, rule.limit - state.remaining - 1)
          next_after = to_millis(minus(state.ahead_seconds, state.ahead_nanos, seconds, nanos))
        end
        return {{
          allowed = state.allowed, limit = rule.limit, used = used, retry = state.wait, next = next_after,
          reset = to_millis(state.ahead_seconds, state.ahead_nanos),
          window = to_millis(rule.tolerance_seconds, rule.tolerance_nanos), at = state.turn_at or state.now,
        }}
      end
      function throttle.refund(rule, state)
        check_time(state.seconds, state.nanos)
        local before, quantity, last = used_by(rule, state.debt_seconds, state.debt_nanos), rule.quantity, state.now
        if not at_most(state.debt_seconds, state.debt_nanos, rule.tolerance_seconds, rule.tolerance_nanos) then
          local seconds, nanos = plus(state.seconds, state.nanos, state.debt_seconds, state.debt_nanos)
          last = to_millis(minus(seconds, nanos, rule.tolerance_seconds, rule.tolerance_nanos))
        end
        quantity = max(rule.at or state.now, state.now) == last and quantity or 0
        local seconds, nanos = intervals(rule, quantity)
        if not seconds or at_most(state.debt_seconds, state.debt_nanos, seconds, nanos) then
          seconds, nanos, quantity = 0, 0, before
        else
          seconds, nanos = minus(state.debt_seconds, state.debt_nanos, seconds, nanos)
        end
        state.ahead_seconds, state.ahead_nanos = seconds, nanos
        state.counts = before > 0 and quantity > 0
        throttle.apply(rule, state)
        return {quantity, used_by(rule, seconds, nanos), ceil(to_millis(seconds, nanos) / 1000)}
      end
    end
    local function read(_, key, now, seconds, nanos)
      local text = call('GET', key)
      local state = {key = key, now = now, seconds = seconds, nanos = nanos, debt_seconds = 0, debt_nanos = 0}
      if text then
        if read_integer(text) < 0 then
          fail('ERR value is not an integer or out of range')
        end
        local stored_seconds, stored_nanos = tonumber(sub(text, 1, -10)) or 0, tonumber(sub(text, -9))
        if not at_most(stored_seconds, stored_nanos, seconds, nanos) then
          state.debt_seconds, state.debt_nanos = minus(stored_seconds, stored_nanos, seconds, nanos)
        end
      end
      return state
    end
    local function apply(_, state)
      if not state.counts then
        return
      elseif state.ahead_seconds == 0 and state.ahead_nanos == 0 then
        call('UNLINK', state.key) -- It says nothing any more.
        return
      end
      local seconds, nanos = plus(state.seconds, state.nanos, state.ahead_seconds, state.ahead_nanos)
      local digits = seconds > 0 and format('%.0f%09.0f', seconds, nanos) or format('%.0f', nanos)
      call('SET', state.key, digits, 'PXAT', to_millis(seconds, nanos))
    end
    local function parse(words, at, command)
      if not (words[at] and words[at + 1] and words[at + 2]) then
        fail(format("ERR wrong number of arguments for 'rl.%s' command", command))
      end
      local burst = within(words[at], 0, 9007199254740991 - 1)
        or fail('ERR max_burst must be an integer from 0 to 9007199254740990')
      local count = within(words[at + 1], 1, 9007199254740991) or fail('ERR count must be an integer from 1 to 9007199254740991')
      local period = within(words[at + 2], 1, 2147483647)
        or fail('ERR period must be an integer number of seconds from 1 to 2147483647')
      local rule = {limit = burst + 1, quantity = 1}
      at = at + 3
      local word = words[at]
      if word and find(word, '^[%d+.-]') then
        rule.quantity = within(word, 0, 9007199254740991) or fail('ERR quantity must be an integer from 0 to 9007199254740991')
        at = at + 1
      end
      at = options(rule, words, at, command, 'THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL]')
      rule.seconds, rule.nanos = interval_of(period, count)
      if not rule.seconds then
        fail('ERR count must be at most one request a nanosecond of the period')
      end
      rule.tolerance_seconds, rule.tolerance_nanos = intervals(rule, rule.limit)
      if not rule.tolerance_seconds
        or not at_most(rule.tolerance_seconds, rule.tolerance_nanos, 4611686018, 427387904) then
        fail('ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill')
      end
      return rule, at
    end
    local function reply(rule, state)
      return {
        state.allowed and 0 or 1, rule.limit, state.remaining,
        state.wait > 0 and ceil(state.wait / 1000) or -1,
        ceil(to_millis(state.ahead_seconds, state.ahead_nanos) / 1000),
        rule.WITHIN and (state.turn_in or 0),
      }
    end
    throttle = {
      syntax = 'THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL]', parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
      complete = complete,
    }
    return throttle
  end
  local make_acquire = (not ONLY or ONLY == 'acquire') and function()
    local acquire = nil
    local function prune(leases)
      if leases.held == 0 then
        if leases.ended > 0 then
          call('UNLINK', leases.key)
        end
        return false
      end
      if leases.ended > 1000 then
        call('ZREMRANGEBYRANK', leases.key, 0, 1000 - 1)
      elseif leases.ended > 0 then
        call('ZREMRANGEBYSCORE', leases.key, '-inf', leases.now)
      end
      return true
    end
    local function expire_with_last(key, now, exists)
      local last = tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
      if last <= 9007199254740991 and not (exists and expiry_of(key, now) == ceil(last)) then
        call('PEXPIREAT', key, format('%.0f', ceil(last)))
      end
    end
    local function read(rule, key, now)
      local held = call('ZCOUNT', key, format('(%d', now), '+inf')
      local leases = {key = key, now = now, held = held, ended = call('ZCARD', key) - held}
      if held > 0 and rule.holder then
        local score = tonumber(call('ZSCORE', key, rule.holder) or '-inf')
        leases.own = score > now and score or nil
      end
      return leases
    end
    local function set_missing_expiry(_, leases)
      if leases.held > 0 and not expiry_of(leases.key, leases.now) then
        expire_with_last(leases.key, leases.now, false)
      end
    end
    local function apply(rule, leases)
      local exists, new = leases.held > 0, leases.now + rule.lease
      local is_last = exists and leases.ended > 1000
      if leases.ended > 0 and not leases.keeps_stale and not is_last then
        exists = prune(leases)
      end
      if leases.counts and leases.own ~= new then
        call('ZADD', leases.key, format('%d', new), rule.holder)
        expire_with_last(leases.key, leases.now, exists)
      else
        set_missing_expiry(rule, leases)
      end
      if is_last and not leases.keeps_stale then
        prune(leases)
      end
    end
    local release = not DIRECT and function(words, at, key)
      local now = clock()
      local leases = read({}, key, now)
      local released, count = {}, 0
      for index = at, leases.held > 0 and #words or 0 do
        local holder = words[index]
        local score = not released[holder] and call('ZSCORE', key, holder)
        if score and tonumber(score) > now then
          count = count + 1
          released[count], released[holder] = holder, true
        end
      end
      if count > 0 and count == leases.held then
        call('UNLINK', key)
      elseif count > 0 or leases.ended > 0 then
        prune(leases)
        for first = 1, count, 1000 do
          call('ZREM', key, unpack(released, first, min(first + 999, count)))
        end
        if count > 0 then
          expire_with_last(key, now, true)
        end
      end
      return count
    end
    local function verdict(rule, leases)
      leases.allowed = leases.own ~= nil or leases.held < rule.limit
    end
    local function decide(rule, leases, counts)
      leases.counts = counts and leases.allowed
      leases.held_after = leases.held + (leases.counts and not leases.own and 1 or 0)
      leases.binding = {limit = rule.limit, used = leases.held_after}
    end
    local function complete()
      if acquire.statuses then
        return
      end
      local function end_of(rule, leases, place)
        local key, now = leases.key, leases.now
        local function stored(index)
          local found = call('ZRANGEBYSCORE', key, format('(%d', now), '+inf', 'WITHSCORES', 'LIMIT', index, 1)
          local at = tonumber(found[2])
          return at <= 9007199254740991 and ceil(at) - now or -1
        end
        if not leases.counts then
          return stored(place)
        end
        local new = now + rule.lease
        local earlier = call('ZCOUNT', key, format('(%d', now), format('(%.0f', new))
        if leases.own and leases.own < new then
          earlier = earlier - 1
        end
        if place == earlier then
          return rule.lease
        elseif place > earlier then
          place = place - 1
        end
        if leases.own and place >= call('ZRANK', key, rule.holder) - leases.ended then
          place = place + 1
        end
        return stored(place)
      end
      function acquire.retry(rule, leases)
        if leases.allowed then
          return 0
        end
        return rule.limit == 0 and -1 or end_of(rule, leases, leases.held - rule.limit)
      end
      function acquire.statuses(rule, leases)
        local held, next_after, reset = leases.held_after, 0, 0
        if held > 0 then
          next_after = rule.limit == 0 and -1 or end_of(rule, leases, max(0, held - rule.limit))
          reset = end_of(rule, leases, held - 1)
        end
        return {{
          allowed = leases.allowed, limit = rule.limit, used = held, retry = acquire.retry(rule, leases), next = next_after,
          reset = reset, window = rule.lease, at = leases.now,
        }}
      end
    end
    local function parse(words, at, command)
      if not (words[at] and words[at + 1] and words[at + 2]) then
        fail(format("ERR wrong number of arguments for 'rl.%s' command", command))
      end
      local rule = {limit = within(words[at], 0, 9007199254740991) or fail('ERR limit must be an integer from 0 to 9007199254740991')}
      rule.lease, rule.holder = window_of(words[at + 1], 'leaseSec'), words[at + 2]
      return rule, options(rule, words, at + 3, command, 'ACQUIRE limit leaseSec holder [FULL]')
    end
    local function reply(rule, leases)
      return {leases.allowed and 1 or 0, leases.held_after, ceil(rule.lease / 1000)}
    end
    acquire = {
      syntax = 'ACQUIRE limit leaseSec holder [FULL]', parse = parse, read = read, verdict = verdict, decide = decide, reply = reply, apply = apply,
      set_missing_expiry = set_missing_expiry, release = release, complete = complete,
    }
    return acquire
  end
  local rules = {}
  local function rule_of(name)
    local rule = rules[name]
    if not rule then
      local make = name == 'SLIDING' and make_sliding
        or name == 'FIXED' and make_fixed
        or name == 'THROTTLE' and make_throttle
        or name == 'ACQUIRE' and make_acquire
        or nil
      rule = make and make()
      rules[name] = rule
    end
    return rule
  end
  local function maps_of(kind, rule, state, each)
    kind.complete()
    local maps = kind.statuses(rule, state, each)
    for index = 1, #maps do
      local status = maps[index]
      local map = {
        ye = 0, rt = 0, bex = 0, xl = 0, bcm = 0, ij = 0, aru = 0, br = 0, re = 0,
        ['wait-ms'] = state.shows_wait and (state.turn_in or 0) or nil, ['at-ms'] = status.at, ['window-ms'] = status.window, ['reset-after-ms'] = status.reset,
        ['next-after-ms'] = status.next, ['retry-after-ms'] = state.is_held and 0 or status.retry,
        ['remaining'] = max(0, status.limit - status.used), ['used'] = status.used, ['limit'] = status.limit,
        ['allowed'] = (status.allowed or state.is_held) and 1 or 0,
      }
      map.ye, map.rt, map.bex, map.xl, map.bcm, map.ij, map.aru, map.br, map.re = nil, nil, nil, nil, nil, nil, nil, nil, nil
      maps[index] = {map = map}
    end
    return maps
  end
  local check_first = HELD and function(kind, rule, state, full, each, counts)
    kind.complete()
    kind.verdict(rule, state)
    kind.decide(rule, state, counts and (state.allowed or rule.counts))
    if full or each then
      maps_of(kind, rule, state, each)
    end
    if kind.plan and state.added > 0 then
      kind.plan(state)
    end
  end
  local function decide(kind, words, at, command, key, declared)
    local rule = kind.parse(words, at, command)
    local writes = command ~= 'peek'
    local now, seconds, nanos = clock()
    local state = kind.read(rule, key, now, seconds, nanos, declared, writes and not rule.HOLD)
    local holds = rule.HOLD and (held or make_held()).open(rule, key, now, declared)
    if holds and holds.has_ended then
      if writes then
        local own = budget
        budget = new_budget('full')
        check_first(kind, rule, state, rule.FULL, rule.EACH, not holds.own)
        budget = own
      end
      local ended = held.find_ended(kind, rule, key, holds, declared)
      if writes then
        held.give_back(kind, key, holds, ended, declared)
        state, holds = kind.read(rule, key, now, seconds, nanos, declared, false), held.open(rule, key, now, declared)
      else
        held.leave_out(kind, holds, ended, state)
      end
    end
    kind.verdict(rule, state)
    local counts = state.allowed or rule.counts
    if holds and holds.own then
      counts, state.is_held = false, true -- The request was counted before, and allowed.
    end
    kind.decide(rule, state, counts, not (rule.FULL or rule.EACH))
    if kind.plan and (writes or state.added > 0) then
      budget.compaction = writes and budget.compaction or 'full'
      kind.plan(state)
    end
    if holds and counts then
      held.check_room(holds)
    end
    local reply
    if rule.EACH then
      reply = maps_of(kind, rule, state, true)
    elseif rule.FULL then
      reply = maps_of(kind, rule, state, false)[1]
    else
      reply = kind.reply(rule, state)
      reply[1] = state.is_held and 1 or reply[1]
    end
    if writes then
      kind.apply(rule, state)
      if holds then
        held.apply(rule, holds, counts)
      end
    end
    return reply
  end
  local others = nil
  local make_others = not DIRECT and function()
    local least_words = {peek = 3, reset = 0, release = 1, all = 4, refund = 3, settle = 5}
    local reset = (not ONLY or ONLY == 'fixed') and function(words, at, key, declared)
      local windows, last = {}, #words
      local has_holds = words[at] and upper(words[last]) == 'HOLD'
      for index = at, has_holds and last - 1 or last do
        local window = window_of(words[index])
        if #windows > 0 and not is_longer(window, windows[#windows]) then
          fail('ERR windowSec must increase from one window to the next')
        elseif #windows == 16 then
          fail('ERR windowSec can be given for at most 16 windows')
        end
        windows[#windows + 1] = window
      end
      local now, fixed, names = clock(), rule_of('FIXED'), {}
      local kind = call('TYPE', key).ok
      if kind == 'string' or kind == 'zset' then
        names[1] = key
      elseif kind ~= 'none' then
        fail('WRONGTYPE Operation against a key holding the wrong kind of value')
      end
      local function add(suffix, expected)
        local name = counter_name(key, suffix, declared)
        kind = call('TYPE', name).ok
        if kind == expected then
          names[#names + 1] = name
        elseif kind == 'none' then
          check_missing(key, name, declared)
        else
          fail('WRONGTYPE Operation against a key holding the wrong kind of value')
        end
      end
      for index = 1, 2 * #windows do
        local suffix = fixed.suffix_of(windows[floor((index + 1) / 2)], now, index % 2 == 0)
        if not declared or declared[key .. ':' .. suffix] or declared['{' .. key .. '}:' .. suffix] then
          add(suffix, 'string')
        end
      end
      if has_holds then
        add('held', 'zset')
      end
      local removed = 0
      for index = 1, #names do
        removed = removed + call('UNLINK', names[index])
      end
      return removed
    end
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
    others = function(command, key, words, at, declared)
      local least = least_words[command]
      if not least then
        fail('ERR the first word must be sliding, fixed, throttle, acquire, peek, reset, release, all, refund or settle')
      elseif not key or #words - at + 1 < least then
        fail(format("ERR wrong number of arguments for 'rl.%s' command", command))
      elseif command == 'reset' then
        return reset(words, at, key, declared)
      elseif command == 'release' then
        return rule_of('ACQUIRE').release(words, at, key)
      end
      local kind = rule_of(upper(words[at]))
      if command == 'peek' then
        return decide(kind or fail('ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE'), words, at + 1, 'peek', key, declared)
      elseif command == 'settle' then
        local is_holdable = kind and find(kind.syntax, '[HOLD', 1, true)
        return settle(is_holdable and kind or fail('ERR rule must be SLIDING or FIXED'), words, at + 1, key, declared)
      end
      if kind then
        kind.complete()
      end
      local refund = kind and kind.refund or fail('ERR rule must be SLIDING, FIXED or THROTTLE')
      local rule = kind.parse(words, at + 1, 'refund')
      local now, seconds, nanos = clock()
      return refund(rule, kind.read(rule, key, now, seconds, nanos, declared, false, true))
    end
    return others
  end
  local all = nil
  local make_all = not ONLY and function()
    local function is_less(a, b, c, d)
      while true do
        local left, right = math.fmod(a, b), math.fmod(c, d)
        local whole, other = (a - left) / b, (c - right) / d
        if whole ~= other then
          return whole < other
        elseif left == 0 or right == 0 then
          return left == 0 and right ~= 0
        end
        a, b, c, d = d, right, b, left
      end
    end
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
    local function plan_together(parts)
      for index = 1, #parts do
        local part = parts[index]
        local kind, state = part.kind, part.state
        if kind.plan then
          kind.plan(state)
        end
        local set = state.log or state
        local stale = max(set.expired or set.ended or 0, set.ahead or 0)
        stale = (set.units or set.held) == 0 and 0 or min(stale, 1000)
        set.keeps_stale = stale > budget.removed
        budget.removed = set.keeps_stale and budget.removed or budget.removed - stale
        if part.holds and part.counts then
          held.check_room(part.holds)
        end
      end
    end
    local function parse(keys, words, at)
      if #keys < 1 or #keys > 64 then
        fail('ERR numkeys must be an integer from 1 to 64')
      elseif #keys + #words - at + 1 < 4 then
        fail(format("ERR wrong number of arguments for 'rl.%s' command", 'all'))
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
          fail('ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE')
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
          within_ms = wait_of(words[at] or fail('ERR syntax error: expected one rule a key [WITHIN ms] [FULL]'))
        elseif rule_of(option) then
          fail('ERR syntax error: expected one rule a key [WITHIN ms] [FULL]')
        else
          bad_words('all', parts[#parts].kind.syntax)
        end
        at = at + 1
      end
      if #parts < #keys and not declared then
        fail('ERR syntax error: expected one rule a key [WITHIN ms] [FULL]')
      end
      for index = 1, within_ms and #parts or 0 do
        local rule = parts[index].rule
        if not parts[index].kind.outlook or rule.FORCE or rule.HOLD then
          fail('ERR RL.ALL takes WITHIN where every rule is SLIDING, and none has FORCE or HOLD')
        end
      end
      return parts, full, within_ms, declared
    end
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
    local function wait(parts, within_ms)
      local now, room, place, counts = parts[1].state.now, parts[1].state.now, 0, false
      for index = 1, #parts do
        local part = parts[index]
        part.room, part.place = part.kind.outlook(part.rule, part.state)
        room = room and part.room and max(room, part.room)
        place, counts = max(place, part.place), counts or part.rule.cost > 0
      end
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
        local state = parts[index].state
        if state.log and state.store.is_compact and state.store.is_nearly_full(state.log) then
          budget.compaction = 'full'
        end
      end
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
      if added > 1000 then
        fail('ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)')
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
    return all
  end
  run = function(command, keys, words, at, declared)
    budget = new_budget('due')
    if command == 'all' then
      return (all or make_all())(keys, words, at)
    end
    local kind = rule_of(upper(command))
    if not kind then
      return (others or make_others())(command, keys[1], words, at, declared)
    elseif not keys[1] then
      fail(format("ERR wrong number of arguments for 'rl.%s' command", command))
    end
    return decide(kind, words, at, command, keys[1], declared)
  end
  return run
end
local function answer(command, keys, words, at, is_plain)
  local key, more = keys[1], #words - at
  local declared = nil
  if #keys > 1 and command ~= 'all' then
    declared = {}
    for index = 2, #keys do
      declared[keys[index]] = true
    end
  end
  if is_plain or key and (command == 'sliding' and (more == 1 or more == 3 and string.upper(words[at + 2]) == 'COST')
    or command == 'fixed' and more == 1) then
    local window, limit = window_of(words[at]), within(words[at + 1], 0, 9007199254740991) or fail('ERR limit must be an integer from 0 to 9007199254740991')
    if window < 0 then
    elseif command == 'fixed' then
      return plain_fixed(key, window, limit, declared)
    else
      return plain_sliding(key, window, limit, more == 3 and (within(words[at + 3], 1, 9007199254740991) or fail('ERR COST must be an integer from 1 to 9007199254740991')))
    end
  end
  return (run or make_run())(command, keys, words, at, declared)
end
