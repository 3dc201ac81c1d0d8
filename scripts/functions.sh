#!/usr/bin/env bash
# Generates what a server loads, a library for FUNCTION LOAD and a script for EVALSHA, from functions/rl.lua and the files that it
# includes. Comment lines are left out, since servers keep the text. While a library is being loaded it has no math, no string and no
# redis.call, so its rules are built in the first call. With --check it only checks that all files are up to date. The client packages
# replace a library whose version is lower than that of their own: raise it with every change of what the functions do.
set -euo pipefail
cd "$(dirname "$0")/../functions"

version=5

# rl.lua with the files that it includes, without comments. A constant is written out wherever its name stands: as a local it would be
# captured by the functions that use it, in each call of the script.
rules() {
  awk '
    BEGIN { put("rl", "") }

    function put(file, indent,    line, name, at) {
      file = file ".lua"
      while ((getline line <file) > 0) {
        if (match(line, /^ *include \047/)) {
          at = RLENGTH
          match(line, /^ */)
          put(substr(line, at + 1, length(line) - at - 1), indent substr(line, 1, RLENGTH))
        } else if (match(line, /^local [A-Z][A-Z_]* = /)) {
          name = substr(line, 7, RLENGTH - 9)
          value[name] = written(substr(line, RLENGTH + 1))
          sub(/ -- .*/, "", value[name])
        } else if (line !~ /^ *--/ && line != "") {
          print indent written(line)
        }
      }
      close(file)
    }

    function written(line,    result, word, around) {
      while (match(line, /[A-Z][A-Z_]+/)) {
        word = substr(line, RSTART, RLENGTH)
        around = substr(line, RSTART - 1, 1) substr(line, RSTART + RLENGTH, 1)
        result = result substr(line, 1, RSTART - 1) (word in value && around !~ /[[:alnum:]_\047"]/ ? value[word] : word)
        line = substr(line, RSTART + RLENGTH)
      }
      return result line
    }
  '
}

# The reply to a call, or its error. Lua's own errors begin with a place in the text, never with a code.
reply() {
  cat <<'LUA'
local ok, reply = pcall(answer, command, keys, words, at, PLAIN)
if ok then
  return reply
end
return {err = find(tostring(reply), '^%u+ ') and reply or 'ERR rl: internal error: ' .. tostring(reply)}
LUA
}

library() {
  cat <<LUA
#!lua name=rl
-- The commands of redis-rl as functions. Made of functions/ by \`make functions\`.
-- Version $version
local VERSION = $version
local KEEPS_STATE, ONLY, DIRECT, PLAIN = true, false, false, false
local function rules()
LUA
  rules
  echo 'return function(command, keys, words, at)'
  reply
  cat <<'LUA'
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
register('release', {'allow-oom'})
register('all', {})
register('peek', {'no-writes', 'allow-oom'})
register('refund', {'allow-oom'})
register('reset', {'allow-oom'})
redis.register_function{
  function_name = 'rl_version',
  callback = function() return VERSION end,
  flags = {'no-writes', 'allow-oom', 'allow-stale'},
}
LUA
}

script() {
  cat <<'LUA'
-- The commands of redis-rl as one script: EVALSHA sha numkeys key ... command word ... Made of functions/ by `make functions`.
local command, keys, words, at = string.lower(ARGV[1] or ''), KEYS, ARGV, 2
local ONLY = command
if command == 'peek' or command == 'refund' then
  ONLY = string.lower(words[2] or '')
elseif command == 'release' or command == 'reset' then
  ONLY = command == 'release' and 'acquire' or 'fixed'
end
ONLY = (ONLY == 'sliding' or ONLY == 'fixed' or ONLY == 'throttle' or ONLY == 'acquire') and ONLY
local KEEPS_STATE, DIRECT, PLAIN = false, ONLY == command, false
if keys[1] and (command == 'sliding' or command == 'fixed') then
  PLAIN = #words == 3 or #words == 5 and command == 'sliding' and string.upper(words[4]) == 'COST'
end
LUA
  rules
  reply
}

# The client packages take the files in when they are built.
if [ "${1-}" = --check ]; then
  if ! cmp -s <(library) rl.library.lua || ! cmp -s <(script) rl.script.lua; then
    echo 'functions/rl.library.lua and rl.script.lua are not those of the files beside them: run `make functions`' >&2
    exit 1
  fi
else
  library >rl.library.lua
  script >rl.script.lua
fi
