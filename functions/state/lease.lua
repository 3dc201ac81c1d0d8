-- Leases in a sorted set: the holder's bytes, and as the score the unix time in milliseconds at which its lease ends.

-- Removes leases that have ended. Returns whether the key still exists.
local function prune(leases)
  if leases.held == 0 then
    if leases.ended > 0 then
      call('UNLINK', leases.key)
    end
    return false
  end
  if leases.ended > MOST_REMOVED then
    call('ZREMRANGEBYRANK', leases.key, 0, MOST_REMOVED - 1)
  elseif leases.ended > 0 then
    call('ZREMRANGEBYSCORE', leases.key, '-inf', leases.now)
  end
  return true
end

-- The key expires with its last lease. A score that no clock reaches, which others have planted, never ends.
local function expire_with_last(key, now, exists)
  local last = tonumber(call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
  if last <= MOST and not (exists and expiry_of(key, now) == ceil(last)) then
    call('PEXPIREAT', key, format('%.0f', ceil(last)))
  end
end

-- Leases that have ended are still there, and are not held.
local function read(rule, key, now)
  local held = call('ZCOUNT', key, format('(%d', now), '+inf')
  local leases = {key = key, now = now, held = held, ended = call('ZCARD', key) - held}
  if held > 0 and rule.holder then
    local score = tonumber(call('ZSCORE', key, rule.holder) or '-inf')
    leases.own = score > now and score or nil
  end
  return leases
end

-- Leases without an expiry would stay for ever.
local function set_missing_expiry(_, leases)
  if leases.held > 0 and not expiry_of(leases.key, leases.now) then
    expire_with_last(leases.key, leases.now, false)
  end
end

local function apply(rule, leases)
  local exists, new = leases.held > 0, leases.now + rule.lease
  -- What goes by rank is removed last, as in the module: the holder's own lease may have ended, and gets a new score.
  local is_last = exists and leases.ended > MOST_REMOVED
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

-- Releases the leases of the holders in words[at] and after. Returns how many of them had one.
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
