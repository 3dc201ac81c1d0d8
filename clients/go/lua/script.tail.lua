local ok, reply = pcall(answer, command, keys, words, at, PLAIN)
if ok then
  return reply
end
return {err = find(tostring(reply), '^%u+ ') and reply or 'ERR rl: internal error: ' .. tostring(reply)}
