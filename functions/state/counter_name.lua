-- The keys of the counters of fixed windows, and of holds.

-- Whether this server is a node of a cluster: nil before the first call has asked, 'unknown' where the user may not. A script,
-- which does not keep it, asks where it has to know.
local in_cluster = not KEEPS_STATE and 'unknown' or nil

-- The key of a counter: `key:suffix`, or in a cluster a name in the slot of the key. The names of counters that the caller has
-- declared show which of the two is in use.
local counter_name = (HELD or not ONLY or ONLY == 'fixed') and function(key, suffix, declared)
  local plain = key .. ':' .. suffix
  if declared then
    local braced = '{' .. key .. '}:' .. suffix
    return declared[plain] and plain or declared[braced] and braced
      or fail("ERR the call needs its counter among the keys: '" .. plain .. "', in a cluster '" .. braced .. "'")
  end
  -- A hash tag is what lies between the first brace and the first closing brace after it, if it is not empty.
  local is_tagged = find(key, '^[^{]*{[^}]+}')
  if in_cluster == nil or in_cluster == 'unknown' and not is_tagged then
    -- A key in another slot would tell as well, by the error that it gets; but after such an error Valkey 9.1 refuses all
    -- further scripts.
    in_cluster = 'unknown'
    local info = redis.pcall('INFO', 'cluster')
    if type(info) == 'string' then
      in_cluster = find(info, 'cluster_enabled:1', 1, true) ~= nil
    else
      -- Some users may not call INFO.
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

-- Refuses a counter that this node lacks and another one may have. The server refuses a call with two keys if one of them may be
-- on another node.
local check_missing = not PLAIN and (HELD or not ONLY or ONLY == 'fixed') and function(key, name, declared)
  if in_cluster ~= false and not declared then
    call('EXISTS', key, name)
  end
end
