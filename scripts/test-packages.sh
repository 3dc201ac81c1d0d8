#!/usr/bin/env bash
# Installs and uses the packages as a user would: in fresh installations of the distributions, with their own servers.
#
#   scripts/test-packages.sh [--packages DIR] [TEST ...]
#
# DIR (target/package) is the output of scripts/package.sh. TEST is one of these; the default is all that the machine can run:
#
#   files         checksums, lintian, debug symbols, the SBOM
#   DISTRIBUTION  debian-12, debian-13 or ubuntu-24.04: the Debian package with each server of that distribution
#   tarball       the tarball, unpacked in Debian 12
#   service       the Debian package of the rate limit service, in Debian 12
#   rpm           the RPM, with rpm in an empty root
#
# It needs root or sudo, for chroot. The base systems are cached in target/test-packages; remove them to get newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

# In a mount namespace of its own, so that mounts disappear when the script ends.
if [ -z "${RL_TEST_PACKAGES:-}" ]; then
    sudo=()
    if [ "$(id -u)" -ne 0 ]; then sudo=(sudo); fi
    exec "${sudo[@]}" env RL_TEST_PACKAGES=1 unshare --mount --propagation private \
        "$PWD/scripts/test-packages.sh" "$@"
fi

arch=$(dpkg --print-architecture)
machine=$(uname -m)
packages=$PWD/target/package
cache=$PWD/target/test-packages
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
library=usr/lib/redis/modules/libredis_rl.so
line='include /usr/share/redis-rl/*.conf'

say() { printf 'test-packages: %s\n' "$*" >&2; }
fail() { say "FAILED: $*"; exit 1; }

# The output of the steps, to be shown if one fails.
scratch=$(mktemp -d)
# The installation under test, its server, the server's process, and that of the rate limit service.
root='' server='' conf='' process='' log='' service=''
finish() {
    for started in "$process" "$service"; do
        if [ -n "$started" ]; then kill -KILL "$started" 2>/dev/null || true; fi
    done
    process='' service=''
    if [ -n "$root" ]; then
        umount "$root/proc" 2>/dev/null || true
        rm -rf --one-file-system "$root"
    fi
    root=''
}
trap 'finish; rm -rf "$scratch"' EXIT

# This machine's Debian mirror, or Ubuntu's archive.
mirror() {
    local found
    if [ "$1" = Ubuntu ]; then echo http://archive.ubuntu.com/ubuntu; return 0; fi
    found=$(apt-get indextargets --format "\$(LABEL) \$(REPO_URI)" 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }')
    echo "${found:-http://deb.debian.org/debian}"
}

# bootstrap NAME: the base system of a distribution, as an archive in the cache.
bootstrap() {
    local name=$1 archive=$cache/$1-$arch.tar suite vendor script keyring components=main
    if [ -f "$archive" ]; then return 0; fi
    say "$name: bootstrapping"
    case $name in
        debian-12) vendor=Debian suite=bookworm script=sid keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
        debian-13) vendor=Debian suite=trixie script=sid keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
        ubuntu-24.04)
            vendor=Ubuntu suite=noble script=gutsy keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
            components=main,universe
            [ -r "$keyring" ] || keyring=$(ubuntu_keyring)
            ;;
        *) fail "unknown test: $name (the head of this file says which there are)" ;;
    esac
    rm -rf "$archive.root"
    debootstrap --arch="$arch" --variant=minbase --components="$components" --keyring="$keyring" \
        "$suite" "$archive.root" "$(mirror "$vendor")" "/usr/share/debootstrap/scripts/$script" >"$archive.log" ||
        { tail -n 20 "$archive.log" >&2; fail "$name cannot be bootstrapped"; }
    if [ "$vendor" = Ubuntu ]; then
        printf 'deb %s %s main universe\n' "$(mirror Ubuntu)" "$suite" "$(mirror Ubuntu)" "$suite-updates" \
            >"$archive.root/etc/apt/sources.list"
    fi
    tar -C "$archive.root" -cf "$archive.part" .
    rm -rf "$archive.root"
    mv "$archive.part" "$archive"
}

# Debian 12 has no package of Ubuntu's keys. This is the package of Ubuntu 24.04, checked by its hash.
ubuntu_keyring() {
    local deb=$cache/ubuntu-keyring.deb
    curl -fsS -o "$deb" \
        http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
    echo "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $deb" | sha256sum --check --quiet >&2
    dpkg-deb -x "$deb" "$cache/ubuntu-keyring"
    printf '%s\n' "$cache/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"
}

inside() {
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "$@"
}

apt() { # What apt says is shown where it fails, and left in $scratch/apt.log.
    inside apt-get -y -q --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >"$scratch/apt.log" 2>&1 ||
        { cat "$scratch/apt.log" >&2; fail "$root: apt-get $*"; }
}

# fresh DISTRIBUTION SERVER: a new installation with that server.
fresh() {
    finish
    bootstrap "$1"
    server=$2
    root=$(mktemp -d)
    chmod 755 "$root"
    tar -C "$root" -xf "$cache/$1-$arch.tar"
    mount -t proc proc "$root/proc"
    # No service may start: there is no init here.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    apt update
    apt install "$server"
    case $server in
        redis-server) conf=/etc/redis/redis.conf log=/var/log/redis/redis-server.log ;;
        valkey-server) conf=/etc/valkey/valkey.conf log=/var/log/valkey/valkey-server.log ;;
    esac
}

cli() { nsenter --target "$process" --net chroot "$root" "/usr/bin/${server%-server}-cli" "$@"; }

# unit KEY: the value in the package's systemd unit.
unit() { sed -n "s/^$1=//p" "$root/lib/systemd/system/$server.service" | head -n 1; }

# confine ROOT PATH ...: in this mount namespace programs and libraries below ROOT can be used from these paths only, and home
# folders are closed. That is the part of a unit's sandbox (NoExecPaths, ExecPaths, ProtectHome) on which loading a module depends.
# shellcheck disable=SC2329 # It is called in another shell.
confine() {
    local root=$1 path
    shift
    mount --rbind "$root" "$root"
    mount -o remount,bind,noexec "$root"
    for path in "$@"; do
        mount --bind "$root$path" "$root$path"
        mount -o remount,bind,exec "$root$path"
    done
    for path in /home /root; do mount -t tmpfs -o mode=000 tmpfs "$root$path"; done
}

# start [COMMAND ...]: the server, as its unit starts it or by COMMAND, in a network of its own. Returns once it answers.
start() {
    local command=("$@") user tries=600 paths
    user=$(unit User)
    [ "$(unit NoExecPaths)" = / ] && [ "$(unit ProtectHome)" = true ] || fail "$server has a unit with another sandbox"
    # With the two programs below that start the server.
    read -ra paths <<<"$(unit ExecPaths) /usr/bin/env /usr/bin/setpriv"
    if [ $# -eq 0 ]; then read -ra command <<<"$(unit ExecStart)"; fi
    if [ -z "$user" ] || [ ${#command[@]} -eq 0 ]; then fail "$server has no unit to start it by"; fi
    inside install -d -o "$user" -g "$user" -m 755 "/run/$(unit RuntimeDirectory)"
    # shellcheck disable=SC2016 # The shell in the namespace expands these.
    unshare --net --mount bash -c "set -e; $(declare -f confine)"'; ip link set lo up; confine $1; shift; exec chroot "$@"' \
        bash "$root ${paths[*]}" --userspec="$user:$user" --groups="$user" "$root" /usr/bin/env -i PATH=/usr/bin:/bin \
        setpriv --no-new-privs "${command[@]}" >"$scratch/server.out" 2>&1 &
    process=$!
    until [ "$(cli PING 2>/dev/null)" = PONG ]; do
        if ! kill -0 "$process" 2>/dev/null || [ $((tries -= 1)) -eq 0 ]; then return 1; fi
        sleep 0.1
    done
}

must_start() { start "$@" || { cat "$scratch/server.out" >&2; tail -n 20 "$root$log" >&2; fail "$server does not start $*"; }; }

must_not_start() {
    if start; then fail "$server starts"; fi
    wait "$process" || true
    process=''
}

stop() {
    kill "$process"
    wait "$process" || true
    process=''
}

expect() { # expect WANTED COMMAND ...: what the server answers.
    local wanted=$1 got
    shift
    got=$(cli "$@" | paste -sd' ')
    [ "$got" = "$wanted" ] || fail "$server: $* answers '$got' in place of '$wanted'"
}

answers() { # answers KEY: the module decides, and right.
    expect '1 0 60' RL.SLIDING "$1" 60 2
    expect '1 1 60' RL.SLIDING "$1" 60 2
    expect '0 2 60' RL.SLIDING "$1" 60 2
    expect '0 2 60' RL.PEEK "$1" SLIDING 60 2
    cli INFO rl | grep "^rl_version:$version" >/dev/null || fail "$server: INFO rl does not name version $version: $(cli INFO rl)"
}

silent() { # The module is not there, and the server is.
    expect PONG PING
    case $(cli RL.SLIDING key 60 2 2>&1) in *'unknown command'*) ;; *) fail "$server: the module is loaded" ;; esac
}

add() { printf '%s\n' "$1" >>"$root$conf"; }
drop() { sed -i "\\|^$1|d" "$root$conf"; }

# said TEXT: the last run of apt printed it.
said() { grep -qF -- "$1" "$scratch/apt.log" || { cat "$scratch/apt.log" >&2; fail "apt did not say: $1"; }; }
unsaid() { if grep -qF -- "$1" "$scratch/apt.log"; then fail "apt said: $1"; fi; }

test_deb() { # test_deb DISTRIBUTION SERVER
    local deb=redis-rl_$version-1_$arch.deb other
    say "$1 ($arch): $2"
    fresh "$1" "$2"
    cp "$packages/$deb" "$root/tmp"
    apt install "/tmp/$deb"
    other=$(printf 'redis-server\nvalkey-server\n' | grep -vx "$server")
    [ ! -e "$root/usr/bin/$other" ] || fail "the package brought $other along"
    [ "$(stat -c %a "$root/$library")" = 755 ] || fail "the library has the mode $(stat -c %a "$root/$library")"
    inside cmp "/$library" /usr/lib/valkey/modules/libredis_rl.so

    # Installing the package changes no server; the line in its file does.
    must_start; silent; stop
    add "$line"
    must_start; answers installed
    expect 'rl.cl-throttle no' CONFIG GET rl.cl-throttle
    stop

    # The administrator's settings survive an upgrade, and a running server is not touched.
    sed -i 's/^# \(rl.cl-throttle yes\)/\1/' "$root/etc/redis-rl/settings.conf"
    must_start
    expect 'rl.cl-throttle yes' CONFIG GET rl.cl-throttle
    newer "$root/tmp/$deb" "$root/tmp/newer.deb"
    apt install /tmp/newer.deb
    [ "$(inside dpkg-query -W redis-rl | cut -f 2)" = "$version-2" ] || fail "it was not upgraded"
    answers upgrading
    stop
    must_start; answers upgraded
    expect 'rl.cl-throttle yes' CONFIG GET rl.cl-throttle

    # CONFIG REWRITE adds a loadmodule line. Together with the include line it loads the module twice; the package warns of it.
    expect OK CONFIG REWRITE
    stop
    must_not_start
    apt install --reinstall /tmp/newer.deb
    said "$conf loads the module twice"
    drop include
    must_start; answers rewritten
    expect OK CONFIG REWRITE
    stop
    must_start; answers rewritten-twice; stop
    [ "$(grep -c ^loadmodule "$root$conf")" = 1 ] || fail "$conf has more than one loadmodule line"

    # A loadmodule line needs the library, and a setting the module. The package warns of it when it is removed.
    apt remove redis-rl
    said "$conf has lines for the module"
    must_not_start
    drop loadmodule
    must_not_start
    drop 'rl\.'
    must_start; silent; stop

    # With the include line the server still starts.
    apt install "/tmp/$deb"
    add "$line"
    must_start; answers again
    apt remove redis-rl
    unsaid 'the module'
    answers removed-while-running
    stop
    must_start; silent; stop
    [ -f "$root/etc/redis-rl/settings.conf" ] || fail "the settings went with apt remove"
    apt purge redis-rl
    must_start; silent; stop
    other=$(find "$root" -xdev \( -name '*redis-rl*' -o -name '*redis_rl*' \) ! -path "$root/tmp/*" ! -path "$root/proc/*")
    [ -z "$other" ] || fail "apt purge leaves behind: $other"
}

test_service() {
    local deb=redis-rl-envoy_$version-1_$arch.deb left answer='' tries=100
    local body='{"domain": "example", "descriptors": [{"entries": [{"key": "remote_address", "value": "10.0.0.1"}]}]}'
    say "service ($arch)"
    fresh debian-12 redis-server
    cp "$packages/$deb" "$root/tmp"
    apt install "/tmp/$deb"
    # Without the module it sends functions.
    must_start
    [ "$(inside redis-rl-envoy --version)" = "redis-rl-envoy $version" ] || fail "the service does not run"
    inside redis-rl-envoy --check /etc/redis-rl-envoy/config >&2 || fail "its limits are refused"
    [ "$(stat -c %a "$root/etc/redis-rl-envoy/environment")" = 640 ] || fail "everybody may read the password"
    # As its unit starts it, in the network of the server.
    # shellcheck disable=SC2016 # The shell inside expands these.
    nsenter --target "$process" --net chroot "$root" /usr/bin/env -i RUNTIME_ROOT=/etc/redis-rl-envoy sh -c \
        'set -a && . /etc/redis-rl-envoy/environment && exec /usr/bin/redis-rl-envoy' 2>"$scratch/service.log" &
    service=$!
    until [ -n "$answer" ]; do
        answer=$(nsenter --target "$process" --net curl --silent --data "$body" http://127.0.0.1:8080/json) || true
        if [ $((tries -= 1)) -eq 0 ]; then cat "$scratch/service.log" >&2; fail "the service does not answer"; fi
        sleep 0.1
    done
    case $answer in *'"limitRemaining":4'*) ;; *) fail "the service answers: $answer" ;; esac
    kill "$service"
    wait "$service" || fail "the service does not end"
    service=''
    stop
    echo 'domain: mine' >"$root/etc/redis-rl-envoy/config/example.yaml"
    newer "$root/tmp/$deb" "$root/tmp/newer.deb"
    apt -o Dpkg::Options::=--force-confold install /tmp/newer.deb
    grep -q mine "$root/etc/redis-rl-envoy/config/example.yaml" || fail "an upgrade takes the limits"
    apt purge redis-rl-envoy
    left=$(find "$root" -xdev -name '*redis-rl-envoy*' ! -path "$root/tmp/*" ! -path "$root/proc/*")
    [ -z "$left" ] || fail "apt purge leaves behind: $left"
}

# newer DEB OUT: the same package with a later revision.
newer() {
    local folder
    folder=$(mktemp -d)
    dpkg-deb -R "$1" "$folder"
    sed -i "s/^Version: .*/Version: $version-2/" "$folder/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone -b "$folder" "$2" >/dev/null
    rm -rf "$folder"
}

test_tarball() {
    local name=redis-rl-$version-$machine-unknown-linux-gnu
    say "tarball ($arch)"
    fresh debian-12 redis-server
    tar -C "$root/tmp" -xf "$packages/$name.tar.gz"
    # As docs/INSTALL.md says.
    inside install -D -m 755 "/tmp/$name/libredis_rl.so" "/$library"
    add "loadmodule /$library"
    must_start; answers tarball-and-unit; stop
    # Elsewhere the unit forbids it, in the words of that page.
    inside install -D -m 755 "/tmp/$name/libredis_rl.so" /usr/local/lib/redis-rl/libredis_rl.so
    drop loadmodule
    add 'loadmodule /usr/local/lib/redis-rl/libredis_rl.so'
    must_not_start
    grep -qF 'failed to map segment from shared object' "$root$log" || fail "$server does not start for another reason"
    drop loadmodule
    inside install -D -m 644 "/tmp/$name/redis.conf" /etc/redis-rl.conf
    must_start /usr/bin/redis-server /etc/redis-rl.conf --dir /var/lib/redis
    answers tarball
    expect 'maxmemory-policy volatile-ttl' CONFIG GET maxmemory-policy
    expect 'protected-mode yes' CONFIG GET protected-mode
    stop
    for file in functions/rl.{library,script}.lua LICENSE THIRD-PARTY.txt README.md docs/README.md; do
        [ -s "$root/tmp/$name/$file" ] || fail "the tarball lacks $file"
    done
    must_start
    expect rl FUNCTION LOAD "$(cat "$root/tmp/$name/functions/rl.library.lua")"
    expect '1 0 60' FCALL rl_sliding 1 function 60 2
    stop
}

# must_rpm WORD ...: rpm on the empty root.
must_rpm() { rpm --root "$root/root" "$@" >"$scratch/rpm.log" 2>&1 || { cat "$scratch/rpm.log" >&2; fail "rpm $*"; }; }

test_rpm() {
    local rpm=$packages/redis-rl-$version-1.$machine.rpm empty needed
    say "rpm ($arch): $(rpm --version)"
    finish
    root=$(mktemp -d)
    empty=$root/root
    mkdir -p "$empty"
    # There is no distribution around it: what it needs is read, and not looked for.
    for needed in '(redis >= 7.0 or valkey >= 7.2)' 'libc.so.6(GLIBC_2.28)(64bit)'; do
        rpm -qpR "$rpm" | grep -xF "$needed" >/dev/null || fail "it does not need $needed"
    done
    must_rpm -i --nodeps "$rpm"
    must_rpm -V --nodeps redis-rl
    [ "$(stat -c %a "$empty/usr/lib64/redis/modules/libredis_rl.so")" = 755 ] || fail "the library cannot be loaded"
    [ "$(rpm -qpc "$rpm")" = /etc/redis-rl/settings.conf ] || fail "the settings are no configuration file"
    echo 'rl.cl-throttle yes' >>"$empty/etc/redis-rl/settings.conf"
    must_rpm -U --nodeps --replacepkgs "$rpm"
    grep -q '^rl.cl-throttle yes' "$empty/etc/redis-rl/settings.conf" || fail "an upgrade takes the settings"
    # The library is that of the Debian package, which the other tests load.
    dpkg-deb --fsys-tarfile "$packages/redis-rl_$version-1_$arch.deb" | tar -xO "./$library" |
        cmp - "$empty/usr/lib64/redis/modules/libredis_rl.so" || fail "the packages hold different libraries"
    must_rpm -e redis-rl
    [ ! -e "$empty/usr/lib64/redis/modules/libredis_rl.so" ] || fail "the library stays"
}

test_files() {
    local name=redis-rl-$version-$machine-unknown-linux-gnu folder file id symbols address
    say "files ($arch)"
    (cd "$packages" && sha256sum --check --quiet SHA256SUMS) || fail "the checksums"
    folder=$(mktemp -d)
    for file in "$packages"/redis-rl{,-envoy}_$version-1_$arch.deb; do
        lintian --allow-root --fail-on error "$file" >&2 || fail "lintian"
        dpkg-deb -x "$file" "$folder/deb"
    done
    for file in "$packages"/redis-rl{,-envoy}-$version-$machine-unknown-linux-gnu.tar.gz "$packages/$name-debug.tar.gz"; do
        tar -C "$folder" -xf "$file"
    done
    cmp "$folder/deb/$library" "$folder/$name/libredis_rl.so" || fail "the packages hold different libraries"
    cmp "$folder/deb/usr/bin/redis-rl-envoy" "$folder/${name/redis-rl/redis-rl-envoy}/redis-rl-envoy" ||
        fail "the packages hold different programs"
    # Debuggers find the symbols by the library's build id, and get a line of the source.
    id=$(readelf -nW "$folder/$name/libredis_rl.so" | sed -n 's/.*Build ID: //p')
    symbols=$folder/$name-debug/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    [ "$(readelf -nW "$symbols" | sed -n 's/.*Build ID: //p')" = "$id" ] || fail "the symbols are another library's"
    if readelf -SW "$folder/$name/libredis_rl.so" | grep -E '\.(debug|symtab)'; then fail "the library is not stripped"; fi
    address=$(readelf --dyn-syms -W "$folder/$name/libredis_rl.so" | awk '$8 == "RedisModule_OnLoad" { print $2 }')
    readelf --debug-dump=decodedline "$symbols" 2>/dev/null | grep -F "$(printf ' 0x%x ' "$((16#$address))")" >/dev/null ||
        fail "the symbols know no line of OnLoad"
    grep -q '"bomFormat": "CycloneDX"' "$packages/$name.cdx.json" && grep -q '"name": "redis-module"' "$packages/$name.cdx.json" ||
        fail "the SBOM names no crates"
    if grep -q '"name": "proptest"' "$packages/$name.cdx.json"; then fail "the SBOM names crates of the tests"; fi
    if grep -qF "$PWD" "$packages/$name.cdx.json"; then fail "the SBOM names the folder it was made in"; fi
    rm -rf "$folder"
}

tests=()
while [ $# -gt 0 ]; do
    case $1 in
        --packages) packages=$(cd "$2" && pwd); shift 2 ;;
        *) tests+=("$1"); shift ;;
    esac
done
if [ ${#tests[@]} -eq 0 ]; then tests=(files debian-12 debian-13 ubuntu-24.04 tarball service rpm); fi
[ -f "$packages/redis-rl_$version-1_$arch.deb" ] || fail "no packages of version $version for $arch in $packages (make package)"
mkdir -p "$cache"
for test in "${tests[@]}"; do
    case $test in
        files | tarball | service | rpm) "test_$test" ;;
        *)
            test_deb "$test" redis-server
            if [ "$test" != debian-12 ]; then test_deb "$test" valkey-server; fi
            ;;
    esac
done
say "passed: ${tests[*]} ($arch)"
