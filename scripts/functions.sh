#!/usr/bin/env bash
# Generates what a server loads, a library for FUNCTION LOAD and a script for EVALSHA, from functions/rl.lua and the files that it
# includes. Comment lines are left out, since servers keep the text. While a library is being loaded it has no math, no string and no
# redis.call, so its rules are built in the first call. Both have the same core, which git has once with a head and a tail for each, in
# clients/go/lua: a module of Go is fetched from git as it is. The files in functions/ are for servers, and not in git. With --check it
# only checks that what is in git is up to date. The client packages replace a library whose version is lower than that of their own:
# raise it with every change of what the functions do.
set -euo pipefail
cd "$(dirname "$0")/../functions"

version=11

# What the commands declare in src/command: names and words of the rules, and flags and arities of the other commands.
names=() refundable=() syntaxes=() others=() flags=() least=()
for rule in $(sed -n 's/^rules!(\(.*\));$/\1/p' ../src/command/rules.rs | tr -d ,); do
  file=$(grep -l "^impl Rule for $rule " ../src/command/*.rs)
  syntax=$(sed -n '/const SYNTAX: /{/;$/!N;s/.*"\(.*\)";/\1/p}' "$file")
  names+=("${syntax%% *}") syntaxes+=("$syntax")
  grep -q 'const REFUNDABLE: bool = false;' "$file" || refundable+=("${syntax%% *}")
done
while read -r name arity flag; do
  others+=("$name") least+=("$((-arity - 2))")
  case $flag in
    *readonly*) flags+=("'no-writes', 'allow-oom'") ;;
    *deny-oom*) flags+=('') ;;
    *) flags+=("'allow-oom'") ;;
  esac
done < <(sed '/cfg(feature/,$d' ../src/command/registry.rs | awk -F'"' '
  / name: c"rl\./ { name = substr($2, 4) }
  / flags: c"/ { flags = $2 }
  / arity: / { sub(/.*: /, ""); sub(/,.*/, ""); if (flags ~ /write|readonly/) print name, $0, flags }')
[ ${#names[@]} -gt 0 ] && [ ${#others[@]} -gt 0 ] || { echo 'src/command declares no rules, or not as expected here' >&2; exit 1; }

# a, b or c
list() {
  local all=$*
  all=${all// /, }
  echo "${all%, *} or ${all##*, }"
}

declared() {
  local index name separator=
  cat <<LUA
-- The list of rules. Made of the declarations in src/command by \`make functions\`.

local BAD_COMMAND = 'ERR the first word must be $(list "${names[@],,}" "${others[@]}")'
local BAD_RULE = 'ERR rule must be $(list "${names[@]}")'
local NOT_REFUNDABLE = 'ERR rule must be $(list "${refundable[@]}")'
LUA
  for index in "${!names[@]}"; do
    echo "local ${names[index]}_SYNTAX = '${syntaxes[index]}'"
  done
  echo
  echo '-- How many words each of the other commands has at least, without its key.'
  printf 'local LEAST_WORDS = {'
  for index in "${!others[@]}"; do
    printf '%s%s = %s' "$separator" "${others[index]}" "${least[index]}"
    separator=', '
  done
  printf '}\n'
  for name in "${names[@],,}"; do
    cat <<LUA

local make_$name = (not ONLY or ONLY == '$name') and function()
  local $name = nil
  include 'command/$name'
  return $name
end
LUA
  done
  cat <<'LUA'

local rules = {}

-- The rule of this name. Nothing for a word that is not the name of a rule.
local function rule_of(name)
  local rule = rules[name]
  if not rule then
LUA
  printf '    local make ='
  for name in "${names[@]}"; do
    printf " name == '%s' and make_%s\n      or" "$name" "${name,,}"
  done
  cat <<'LUA'
 nil
    rule = make and make()
    rules[name] = rule
  end
  return rule
end
LUA
}

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

library_head() {
  cat <<LUA
#!lua name=rl
-- The commands of redis-rl as functions. Made of functions/ by \`make functions\`.
-- Version $version
local VERSION = $version
local KEEPS_STATE, ONLY, DIRECT, PLAIN, HELD = true, false, false, false, true
local function rules()
LUA
}

library_tail() {
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
LUA
  local index name
  for name in "${names[@],,}"; do
    echo "register('$name', {})"
  done
  for index in "${!others[@]}"; do
    echo "register('${others[index]}', {${flags[index]}})"
  done
  cat <<'LUA'
redis.register_function{
  function_name = 'rl_version',
  callback = function() return VERSION end,
  flags = {'no-writes', 'allow-oom', 'allow-stale'},
}
LUA
}

script_head() {
  cat <<'LUA'
-- The commands of redis-rl as one script: EVALSHA sha numkeys key ... command word ... Made of functions/ by `make functions`.
local command, keys, words, at = string.lower(ARGV[1] or ''), KEYS, ARGV, 2
local ONLY = command
if command == 'peek' or command == 'refund' or command == 'settle' then
  ONLY = string.lower(words[2] or '')
elseif command == 'release' or command == 'reset' then
  ONLY = command == 'release' and 'acquire' or 'fixed'
end
LUA
  local name
  printf 'ONLY = ('
  for name in "${names[@],,}"; do
    printf "ONLY == '%s' or " "$name"
  done
  echo 'false) and ONLY'
  cat <<'LUA'
local KEEPS_STATE, DIRECT, PLAIN = false, ONLY == command, false
if keys[1] and (command == 'sliding' or command == 'fixed') then
  PLAIN = (#words == 3 or #words == 5 and command == 'sliding' and string.upper(words[4]) == 'COST')
    and string.byte(words[2]) ~= 64 -- @ms
end
local HELD = command == 'settle'
for index = 4, PLAIN and 0 or #words do
  HELD = HELD or #words[index] == 4 and string.upper(words[index]) == 'HOLD'
end
LUA
}

parts=../clients/go/lua
if [ "${1-}" = --check ]; then
  if ! cmp -s <(declared) command/rules.lua || ! cmp -s <(rules) $parts/core.lua ||
    ! cmp -s <(library_head) $parts/library.head.lua || ! cmp -s <(library_tail) $parts/library.tail.lua ||
    ! cmp -s <(script_head) $parts/script.head.lua || ! cmp -s <(reply) $parts/script.tail.lua; then
    echo 'functions/command/rules.lua or clients/go/lua is not what it is made of: run `make functions`' >&2
    exit 1
  fi
else
  declared >command/rules.lua
  rules >$parts/core.lua
  library_head >$parts/library.head.lua
  library_tail >$parts/library.tail.lua
  script_head >$parts/script.head.lua
  reply >$parts/script.tail.lua
  for kind in library script; do
    cat $parts/$kind.head.lua $parts/core.lua $parts/$kind.tail.lua >rl.$kind.lua
  done
fi
