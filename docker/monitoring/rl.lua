#!lua flags=no-writes,allow-stale
-- What the module counts (INFO rl), for the script option of redis_exporter: an array of names and values.
--
-- The exporter runs it at each scrape, without keys, and shows redis_script_values{key="rl_sliding_denied"} and so on.
-- prometheus.yml gives these values metrics of their own.
--
-- It reads and writes no key. The flags let it run on replicas, on a replica that has lost its primary, and when memory is full.

local reply = {}

local function add(name, value)
    reply[#reply + 1] = name
    reply[#reply + 1] = value
end

-- Empty where the module is not loaded.
local fields = redis.call('INFO', 'rl')
local version
for name, value in fields:gmatch('(rl_[%w_]+):([^\r\n]*)') do
    if name == 'rl_version' then
        version = value
    elseif tonumber(value) then -- If a value is not a number, the exporter reports the server as down.
        add(name, value)
    end
end
add('rl_loaded', version and '1' or '0')
-- A value must be a number, so the version is part of the name.
if version then
    add('rl_version:' .. version, '1')
end

-- The clock that decides.
local micros = redis.call('INFO', 'server'):match('server_time_usec:(%d+)')
if micros then
    add('rl_clock', ('%.3f'):format(tonumber(micros) / 1000000))
end

return reply
