-- The counters of fixed windows: integers as the server stores them.

local GRACE = 3600000 -- How long the counter of a window that ends at a time stays, for clocks that are behind.

-- The suffix of a counter's name: the number of its window, or the window's seconds in their shortest form, or when it ends.
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
      quota.ends, quota.life = -1 - window, GRACE - 1 - window - now
      quota.is_over = quota.ends <= now
      if quota.is_over and not may_have_ended then
        fail('ERR the window has ended')
      elseif quota.ends - now > MOST_SECONDS * 1000 then
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

-- A counter without an expiry would never end: it gets one.
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
