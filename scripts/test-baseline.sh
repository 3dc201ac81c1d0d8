#!/usr/bin/env bash
# Checks that the module runs on any x86-64 processor: it holds no instruction of an extension that the first of them
# lacked, and a server on a processor without extensions loads it and answers every command.
#
#   scripts/test-baseline.sh [libredis_rl.so]
#
# Takes objdump (binutils) and qemu-x86_64 (qemu-user).
set -euo pipefail
cd "$(dirname "$0")/.."

module=$(realpath "${1:-${MODULE:-target/release/libredis_rl.so}}")
say() { printf 'baseline: %s\n' "$*"; }

if [ "$(uname -m)" != x86_64 ]; then say "this is no x86-64: nothing to check"; exit 0; fi
for program in objdump qemu-x86_64 redis-server; do
    command -v "$program" >/dev/null || { say "there is no $program here"; exit 1; }
done

# Functions with instructions of SSE3 to AVX-512, BMI, POPCNT and so on. TZCNT is left out: an older processor reads its
# bytes as BSF, and the compiler uses it where both have the same result.
found=$(objdump -d --no-show-raw-insn "$module" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; next }
    $2 ~ /^(v[a-z].*|popcnt|lzcnt|andn|bextr|bls(i|r|msk)|bzhi|pdep|pext|mulx|rorx|sarx|shlx|shrx|movbe|crc32[bwlq]?|pshufb|palignr|pabs.*|phadd.*|pmulhrsw|psign.*|pblend.*|blendv.*|ptest|pmov[sz]x.*|pinsr[bdq]|pextr[bdq]|pcmpeqq|pcmpgtq|pmulld|pmin(s[bd]|u[wd])|pmax(s[bd]|u[wd])|round[sp][sd]|insertps|dpp[sd]|mpsadbw|packusdw|pcmp[ei]str[im]|aes.*|pclmul.*|sha(1|256).*|lddqu|h(add|sub)p[sd]|addsubp[sd]|movs[lh]dup|movddup|cmpxchg16b|ad[co]x)$/ { print name, $2 }
' | sort | uniq -c | sort -rn)
if [ -n "$found" ]; then
    say "instructions that not every x86-64 processor has:"
    printf '%s\n' "$found"
    exit 1
fi

folder=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
qemu-x86_64 -cpu qemu64 "$(command -v redis-server)" --port 0 --unixsocket "$folder/socket" --save '' --dir "$folder" \
    --loadmodule "$module" >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 600); do
    [ -S "$folder/socket" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$folder/log"; say "the server ended"; exit 1; }
    sleep 0.1
done
for call in 'RL.SLIDING k 60 5' 'RL.SLIDING c 60 5 COST 2 FULL' 'RL.FIXED k 60 5' 'RL.THROTTLE t 4 30 60' \
    'RL.ACQUIRE l 5 60 h' 'RL.ALL 2 a b SLIDING 60 5 FIXED 60 5' 'RL.PEEK k SLIDING 60 5' 'RL.RELEASE l h' \
    'RL.REFUND k SLIDING 60 5' 'RL.RESET k 60' 'RL.TOP'; do
    # shellcheck disable=SC2086 # Words.
    reply=$(redis-cli -s "$folder/socket" -e $call 2>&1) || { say "$call: $reply"; cat "$folder/log"; exit 1; }
done
say "a server on a processor without extensions loads it, and every command answers"
