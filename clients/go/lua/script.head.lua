-- The commands of redis-rl as one script: EVALSHA sha numkeys key ... command word ... Made of functions/ by `make functions`.
local command, keys, words, at = string.lower(ARGV[1] or ''), KEYS, ARGV, 2
local ONLY = command
if command == 'peek' or command == 'refund' or command == 'settle' then
  ONLY = string.lower(words[2] or '')
elseif command == 'release' or command == 'reset' then
  ONLY = command == 'release' and 'acquire' or 'fixed'
end
ONLY = (ONLY == 'sliding' or ONLY == 'fixed' or ONLY == 'throttle' or ONLY == 'acquire' or false) and ONLY
local KEEPS_STATE, DIRECT, PLAIN = false, ONLY == command, false
if keys[1] and (command == 'sliding' or command == 'fixed') then
  PLAIN = (#words == 3 or #words == 5 and command == 'sliding' and string.upper(words[4]) == 'COST')
    and string.byte(words[2]) ~= 64 -- @ms
end
local HELD = command == 'settle'
for index = 4, PLAIN and 0 or #words do
  HELD = HELD or #words[index] == 4 and string.upper(words[index]) == 'HOLD'
end
