-- The counters of fixed windows: integers as the server stores them.

-- The suffix of a counter's name: the number of its window, or the window's seconds in their shortest form.
local function suffix_of(window, now, anchored)
  if not anchored then
    return format('%d', floor(now / window))
  end
  local text, places = format('%d', floor(window / 1000)), window % 1000
  if places > 0 then
    text = text .. string.gsub(format('.%03d', places), '0+$', '')
  end
  return text .. 's'
end

local function read(rule, key, now, _, _, declared)
  local state = {now = now, quotas = {}}
  local shorter
  for index = 1, rule.count do
    local window = rule.windows[index]
    local quota = {limit = rule.limits[index], window = window, life = window}
    local suffix = suffix_of(window, now, rule.ANCHORED)
    quota.suffix = suffix
    if shorter and shorter.suffix == suffix then
      quota.shared = shorter.shared or shorter
      quota.shared.life = window
      quota.value, quota.expiry, quota.text = shorter.value, shorter.expiry, shorter.text
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
    state.quotas[index], shorter = quota, quota
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
    elseif not quota.shared then
      call('SET', quota.name, format('%.0f', rule.cost), 'PXAT', quota.expiry_after)
    end
  end
end

-- The keys that a rule counts at.
local counters = not ONLY and function(rule, key, now, declared)
  local names, last = {}, nil
  for index = 1, rule.count do
    local suffix = suffix_of(rule.windows[index], now, rule.ANCHORED)
    if suffix ~= last then
      names[#names + 1], last = counter_name(key, suffix, declared), suffix
    end
  end
  return names
end

local refund = not DIRECT and function(rule, state)
  local now, at, most = state.now, rule.at, 0
  for index = rule.count, 1, -1 do
    local quota = state.quotas[index]
    local in_window = not at or rule.ANCHORED and quota.expiry and at >= quota.expiry - quota.window and at < quota.expiry
      or not rule.ANCHORED and floor(at / quota.window) == floor(now / quota.window)
    if quota.exists and quota.value > 0 and in_window then
      local units = min(rule.cost, quota.value)
      call('INCRBY', quota.name, format('-%.0f', units))
      most, quota.value = max(most, units), quota.value - units
    end
  end
  local first = state.quotas[1]
  local expiry = first.expiry or now + first.life
  return {most, first.value, floor((max(0, expiry - now) + 500) / 1000)}
end
