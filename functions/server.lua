-- The server's commands, its errors and its clock.

local WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

-- Ends the call with an error reply: its line, which begins with a code in capital letters.
local function fail(line)
  error(line, 0)
end

-- Runs a command. Its error is the reply of the call, word for word. Redis 6.2 puts the place in the script before some. While a
-- slot is moved key by key, the server refuses counters that may be on the other node.
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

-- Unix time: milliseconds, and in full as seconds and nanoseconds.
local function clock()
  local time = call('TIME')
  local seconds, micros = tonumber(time[1]), tonumber(time[2])
  return seconds * 1000 + floor(micros / 1000), seconds, micros * 1000
end

-- When a key expires, if it does. Redis 6.2, which does not tell its scripts a version, has no PEXPIRETIME.
local function expiry_of(key, now)
  if redis.REDIS_VERSION_NUM then
    local at = call('PEXPIRETIME', key)
    return at >= 0 and at or nil
  end
  local left = call('PTTL', key)
  return left >= 0 and now + left or nil
end
