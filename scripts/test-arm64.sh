#!/usr/bin/env bash
# Builds the module for arm64 and runs its tests under qemu, on a machine of another architecture.
#
#   scripts/test-arm64.sh [FILTER]
#
# The unit tests run under qemu. For the live tests only the server does, Debian 13's for arm64, with the module from the
# tarball; the tests run on this machine. FILTER selects live tests by name. Needs qemu-aarch64-static (Debian's
# qemu-user-static), but no root and no chroot.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
engine=redis-8.0
folder=$PWD/target/arm64
tools=$PWD/target/tools

say() { printf 'arm64: %s\n' "$*" >&2; }

qemu=$(command -v qemu-aarch64-static) || { say "qemu-aarch64-static is missing (package qemu-user-static)"; exit 1; }
scripts/package.sh --target "$target" --out "$folder/package"
zig=$("$tools/zig/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig # package.sh's own.
version=$(cargo pkgid --locked)
version=${version##*[@#]}
tar -C "$folder" -xf "$folder/package/redis-rl-$version-$target.tar.gz"
module=$folder/redis-rl-$version-$target/libredis_rl.so

if [ ! -x "$folder/engines/$engine/server" ]; then
    rm -rf "$folder/engines/$engine"
    mkdir -p "$folder/engines/$engine"
    REDIS_RL_ENGINE_ARCH=arm64 bash scripts/engines.sh --source debian:trixie redis-server "$folder/engines/$engine"
    ln -s usr/lib "$folder/engines/$engine/root/lib" # Where programs look for their loader.
    # The same starter, under qemu, and with the preloaded clock of the tests built for arm64.
    "$zig" cc -target aarch64-linux-gnu.2.28 -shared -fPIC -O2 -o "$folder/clock.so" tests/support/clock.c
    sed -i "s|^exec |exec env -u LD_PRELOAD '$qemu' \${LD_PRELOAD:+-E 'LD_PRELOAD=$folder/clock.so'} |" \
        "$folder/engines/$engine/server"
    chmod +x "$folder/engines/$engine/server"
fi
"$folder/engines/$engine/server" --version
root=$folder/engines/$engine/root

say "unit tests"
(
    export PATH=$tools/bin:$PATH CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L $root"
    export CARGO_ZIGBUILD_ZIG_PATH=$zig
    cd packaging # As in package.sh.
    cargo-zigbuild test --locked --release --lib --target "$target.2.28" --target-dir ../target/dist
)

# Without `bounds`: those tests measure the memory of the process, which includes the code that qemu has translated.
say "live tests"
REDIS_RL_ENGINES=$folder/engines ENGINES=$engine RL_MODULE=$module cargo test --locked --release --test live -- --skip ::bounds:: "$@"
