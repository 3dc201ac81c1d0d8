return function(command, keys, words, at)
local ok, reply = pcall(answer, command, keys, words, at, PLAIN)
if ok then
  return reply
end
return {err = find(tostring(reply), '^%u+ ') and reply or 'ERR rl: internal error: ' .. tostring(reply)}
end
end
local serve = nil
local function register(command, flags)
  redis.register_function{
    function_name = 'rl_' .. command,
    callback = function(keys, words)
      serve = serve or rules()
      return serve(command, keys, words, 1)
    end,
    flags = flags,
  }
end
register('sliding', {})
register('fixed', {})
register('throttle', {})
register('acquire', {})
register('peek', {'no-writes', 'allow-oom'})
register('reset', {'allow-oom'})
register('release', {'allow-oom'})
register('all', {})
register('refund', {'allow-oom'})
register('settle', {'allow-oom'})
redis.register_function{
  function_name = 'rl_version',
  callback = function() return VERSION end,
  flags = {'no-writes', 'allow-oom', 'allow-stale'},
}
