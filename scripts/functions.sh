#!/usr/bin/env bash
# Generates from functions/rl.lua what a server loads: a library for FUNCTION LOAD and a script for EVALSHA. Comment lines are
# left out, since servers keep the text. While a library is being loaded it has no math, no string and no redis.call, so its
# rules are built in the first call. With --check it only checks that all files are up to date.
set -euo pipefail
cd "$(dirname "$0")/../functions"

rules() {
  sed -e '/^ *--/d' -e '/^$/d' rl.lua
}

library() {
  cat <<'LUA'
#!lua name=rl
-- The commands of redis-rl as functions. Made of rl.lua by `make functions`.
local KEEPS_STATE = true
local function rules()
LUA
  rules
  cat <<'LUA'
return serve
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
LUA
}

script() {
  cat <<'LUA'
-- The commands of redis-rl as one script: EVALSHA sha numkeys key ... command word ... Made of rl.lua by `make functions`.
local KEEPS_STATE = false
LUA
  rules
  cat <<'LUA'
return serve(string.lower(ARGV[1] or ''), KEYS, ARGV, 2)
LUA
}

# The package for Python has copies, since a link would go into its source distribution as it is. The others link to the files
# here, or take them in when they are built.
folders=(. ../clients/python/src/redis_rl/lua)
if [ "${1-}" = --check ]; then
  for folder in "${folders[@]}"; do
    if ! cmp -s <(library) "$folder/rl.library.lua" || ! cmp -s <(script) "$folder/rl.script.lua"; then
      echo "rl.library.lua and rl.script.lua in functions/$folder are not those of functions/rl.lua: run \`make functions\`" >&2
      exit 1
    fi
  done
else
  for folder in "${folders[@]}"; do
    library >"$folder/rl.library.lua"
    script >"$folder/rl.script.lua"
  done
fi
