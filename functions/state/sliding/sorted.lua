-- The log as a sorted set, see mod.lua: one member for each unit, its score the time in milliseconds.

-- The lower bound of the scores later than a time, of those that a clock can have written.
local function later(time)
  return time < 0 and '0' or format('(%d', time)
end

local MOST_AHEAD = 16384 -- So many members may be ahead of the clock that a turn is given.

-- Reads a log for its longest window. `permanent`: members with a score before the epoch, which another program has added; they
-- never expire. `ahead`: members too far ahead of the clock to be kept; they are removed like those that have `expired`.
-- If `prunes`, a few expired members are removed at once, which saves counting them. Nothing if the key has another type.
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
    key = key, window = window, now = now, last_kept = now + (window > LONGEST_WAIT and window or LONGEST_WAIT), card = card,
    live = live, units = live, beyond = 0, permanent = 0, ahead = 0, expired = 0, added = 0, members = false, turn = false,
  }
  local stale = card - live
  if stale > 0 then
    local expired
    if prunes and stale <= MOST_REMOVED then
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

  -- Stale members are removed, no more in one call than takes a short time.
  if log.expired + log.ahead > 0 and log.units == 0 then
    call('UNLINK', key)
  elseif not log.keeps_stale then
    if log.expired > MOST_REMOVED then
      call('ZREMRANGEBYRANK', key, log.permanent, log.permanent + MOST_REMOVED - 1)
    elseif log.expired > 0 then
      call('ZREMRANGEBYSCORE', key, 0, now - window)
    end
    if log.ahead > MOST_REMOVED then
      call('ZREMRANGEBYRANK', key, -log.ahead, MOST_REMOVED - 1 - log.ahead)
    elseif log.ahead > 0 then
      call('ZREMRANGEBYSCORE', key, format('(%d', log.last_kept), '+inf')
    end
  end

  -- Units get new names. The number of members is usually a suffix that is free in this millisecond, for a turn the number of those
  -- that have the same.
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

-- Adds what the plain form does not need.
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
    if stamped_after(log, log.now) + units <= MOST_AHEAD then
      return log.now
    end
    return sorted.stamp_of(log, MOST_AHEAD - units) or log.now
  end

  sorted.refundable = HELD and function(log, at)
    return at > log.now - log.window and at <= log.last_kept and call('ZCOUNT', log.key, at, at) or 0
  end

  function sorted.refund(log, cost, at)
    local now, window, members = log.now, log.window, {}
    if log.card == 0 then
      return 0
    end
    if cost > MOST_ADDED then
      fail(COST_TOO_LARGE)
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
