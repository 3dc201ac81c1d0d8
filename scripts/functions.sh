#!/usr/bin/env bash
# Puts functions/rl.lua and the files that it includes together into the core of what servers load, clients/go/lua/core.lua, and with
# the heads and tails beside it into functions/rl.library.lua, for FUNCTION LOAD, and functions/rl.script.lua, for EVALSHA. Core, heads
# and tails are in git there, since a module of Go is fetched from git as it is; the two files are not. Comment lines are left out,
# since servers keep the text. While a library is being loaded it has no math, no string and no redis.call, so its rules are built in the
# first call. The packages replace a library whose version is lower than that of their own: raise it, in library.head.lua, with every
# change of what the functions do. With --check it only checks that the core is up to date.
set -euo pipefail
cd "$(dirname "$0")/../functions"

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

parts=../clients/go/lua
if [ "${1-}" = --check ]; then
  cmp -s <(rules) $parts/core.lua || { echo 'clients/go/lua/core.lua is not what it is made of: run `make functions`' >&2; exit 1; }
  exit
fi
rules >$parts/core.lua
for kind in library script; do
  cat $parts/$kind.head.lua $parts/core.lua $parts/$kind.tail.lua >rl.$kind.lua
done
