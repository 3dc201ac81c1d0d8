-- A compact log as the log of a sliding window.

-- Plans to add units, if there are any to add, and to drop what does not count. Returns whether that is possible: a log that
-- is full may have to be moved.
local function plan(log, units, may_compact)
  log.change, log.added = nil, units
  return units == 0 and not log.is_pruned or (writer or make_writer()).commit(log, units, may_compact)
end

-- Applies what is planned. `kept`: whether the key's expiry is renewed.
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
  -- Units stamped later than a time.
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

  -- The stamp of the unit with `rank` newer ones.
  function compact.stamp_of(log, rank)
    if rank < log.units then
      local _, _, _, _, _, _, stamp = seek(log, true, log.end_units - rank - 1)
      return stamp
    end
  end

  -- Plans to remove the newest units, or some stamped at this time. Returns how many.
  function compact.refund(log, units, time)
    return (writer or make_writer()).refund(log, units, time)
  end

  -- Whether moving a log would drop many dead bytes.
  function compact.is_compaction_due(log)
    return log.change and not log.is_empty and (writer or make_writer()).is_compaction_due(log)
  end

  compact.complete = nil
end
