-- The log of a sliding window, in one of two forms, each with the same functions:
--
-- read(key, window, now, ...)      the log for its longest window
-- plan(log, units, compaction)     plans to add units, if there are any, and to drop what does not count. `compaction`: whether a log
--                                  may be moved into a new string, where that is 'due' or where it is 'full'; is_compacted then
-- apply(log, kept)                 applies what is planned; `kept`: a request was decided, and the key's expiry is renewed
-- complete()                       adds the functions below, which the plain form does not need
-- newest_stamp(log)                the newest stamp that is kept, 0 in an empty log
--
-- later_than(log, time)            units stamped later than a time, and the permanent ones
-- stamped_after(log, time)         the same without the permanent ones
-- stamp_of(log, rank)              the stamp of the unit with `rank` newer ones; nothing for a permanent one
-- place_from(log, units)           the first time at which turns for this number of units may be added to those that are waited for
-- refund(log, units, at, compaction)  plans to take back the newest units that are not later than now, or some stamped at a time; returns
--                                  how many
-- refundable(log, at)              how many stamped at a time can be taken back; where there are holds
--
-- `units` of a log are kept, of which those `beyond` the longest window do not count yet; `last_kept` is the latest stamp that is kept.
-- `turn` is the time of what is added, if that is not now.

local ceil = math.ceil

local LONGEST_WAIT = 3600000 -- For a turn; a log keeps what is no further ahead.
local MOST_ADDED = 1000 -- Units that one call adds to a sorted set.
local MOST_REMOVED = 1000 -- Stale members that one call removes.
local COST_TOO_LARGE = 'ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)'
local LOG_IS_FULL = 'ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units'

-- The expiry to set for the key of a log, or nothing if the current one lags by so little that it is good enough. The key outlives its
-- newest stamp by a window, and nothing shortens its life while there are stamps ahead of the clock.
local function renewed_expiry(log, exists, newest_stamp)
  local wanted, current = log.now + 2 * log.window, exists and expiry_of(log.key, log.now)
  local newest = (log.beyond > 0 or log.turn) and newest_stamp(log)
  local least = newest and newest + log.window or 0
  local lag = current and wanted - current
  -- Less than a second, and less than a tenth of the window.
  if lag and (lag <= 0 or lag < 1000 and (lag + 1) * 10 <= log.window) and current >= least
    and (lag >= 0 or newest or newest_stamp(log) > log.now) then
    return nil
  end
  return wanted > least and wanted or least
end

local sorted, compact = nil, nil

local function make_sorted()
  include 'state/sliding/sorted'
  return sorted
end

local function make_compact()
  include 'state/compact/mod'
  include 'state/sliding/compact_log'
  return compact
end

-- A new log is compact where the call has a COST. Returns the log and the functions of its form.
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
    fail(WRONG_TYPE)
  end
  local store = compact or make_compact()
  return store.read(key, window, now, kind == 'string'), store
end
