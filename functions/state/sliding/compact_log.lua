-- A compact log as the log of a sliding window; see mod.lua.

local MOST_BLOCKS_AHEAD = 116 -- Turns are added while the entries ahead of the clock begin in this number of the last blocks.

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

-- Adds what the plain form does not need.
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

  -- An entry of now always has its place before those that are later, also where they are written anew behind it.
  function compact.place_from(log)
    local first = log.is_empty and 0 or block_of(log.end_at - 1) + 1 - MOST_BLOCKS_AHEAD
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

  -- Whether a log is so long that a call may not be able to add to it.
  compact.is_nearly_full = not ONLY and function(log)
    return not log.is_empty and log.end_at > NEARLY_FULL
  end

  compact.complete = nil
end
