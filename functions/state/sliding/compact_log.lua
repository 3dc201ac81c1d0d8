-- A compact log as the log of a sliding window; see mod.lua.

local function plan(log, units, compaction)
  log.change, log.added = nil, units
  if units > 0 or log.is_pruned then
    (writer or make_writer()).commit(log, units, compaction)
  end
end

local function apply(log, kept)
  local change, key = log.change, log.key
  local expiry = kept and (log.added > 0 or not log.is_empty) and renewed_expiry(log, not log.is_empty)
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

compact = {is_compact = true, read = read, plan = plan, apply = apply}

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
