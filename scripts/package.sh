#!/usr/bin/env bash
# Builds the files of a release for one target, with the release profile.
#
#   scripts/package.sh [--target TRIPLE] [--out DIR]
#   scripts/package.sh --pages DIR
#
# TRIPLE is one of these; the default is that of this machine, with glibc:
#
#   x86_64-unknown-linux-gnu     a tarball, a Debian package and an RPM, for glibc 2.28 and later; and the rate limit
#                                service of envoy/, as a tarball and a Debian package
#   aarch64-unknown-linux-gnu    the same for arm64
#   x86_64-unknown-linux-musl    a tarball, for Alpine
#   aarch64-unknown-linux-musl   the same for arm64
#
# DIR (target/package) receives the artifacts, debug symbols and a CycloneDX SBOM among them, and SHA256SUMS of all files
# in it. The call can be repeated for another target with the same DIR. The version is that of Cargo.toml.
#
# --pages puts the pages that every package contains into DIR, and checks their links.
#
# The tools are installed below target/tools, in the versions named here. Builds are reproducible: the same commit and compiler
# give the same files. SOURCE_DATE_EPOCH is the time of the commit unless it is set.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# The oldest C library that the packages support: Debian 10, Ubuntu 18.10, RHEL 8.
glibc=2.28
zig_version=0.15.2

tools=$root/target/tools
build=$root/target/dist
stage=$build/stage

say() { printf 'package: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# check FILE: exits if a system could not run the program, or a server not load the library, or if it contains paths of the
# build machine.
check() {
    local library=$1 needed newest text
    needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -Ev '^(libc|libm|libdl|libpthread|librt)\.so\.[0-9]+$|^ld-linux-[a-z0-9-]+\.so\.[0-9]+$|^libc\.so$' || true)
    [ -z "$needed" ] || fail "$library needs libraries beside the C library: $needed"
    newest=$({ readelf -VW "$library" | grep -oE 'GLIBC_[A-Z0-9.]+' || true; } | sort -Vu | tail -n 1)
    if [ -n "$newest" ] && [ "$(printf 'GLIBC_%s\n%s\n' "$glibc" "$newest" | sort -V | tail -n 1)" != "GLIBC_$glibc" ]; then
        fail "$library needs $newest; the packages promise GLIBC_$glibc"
    fi
    readelf -lW "$library" | grep -E 'GNU_STACK .* RW +' >/dev/null || fail "$library asks for an executable stack"
    if readelf -dW "$library" | grep -E 'TEXTREL|RPATH|RUNPATH' >/dev/null; then
        fail "$library has text relocations or a search path of its own"
    fi
    case $library in
        *.so)
            readelf --dyn-syms -W "$library" | grep -E ' GLOBAL +DEFAULT +[0-9]+ RedisModule_OnLoad$' >/dev/null ||
                fail "$library does not export RedisModule_OnLoad"
            ;;
    esac
    for text in "$root" "$HOME"; do
        if LC_ALL=C grep -qF -- "$text/" "$library"; then fail "$library holds a path of this machine: $text"; fi
    done
    say "$library needs ${newest:-no particular version of the C library}"
}

# tool NAME VERSION: a subcommand of cargo.
tool() {
    if grep -qsF "\"$1 $2 " "$tools/.crates.toml"; then return 0; fi
    say "installing $1 $2 into $tools"
    cargo install --locked --quiet --root "$tools" --target-dir "$tools/build" "$1@$2"
}

install_tools() {
    mkdir -p "$tools"
    if [ "$(cat "$tools/zig/version" 2>/dev/null)" != "$zig_version" ]; then
        say "installing zig $zig_version into $tools/zig"
        rm -rf "$tools/zig"
        python3 -m venv "$tools/zig" || fail "python3 cannot make a virtual environment (package python3-venv)"
        "$tools/zig/bin/pip" install --quiet "ziglang==$zig_version"
        printf '%s\n' "$zig_version" >"$tools/zig/version"
    fi
    tool cargo-zigbuild 0.24.1
    tool cargo-cyclonedx 0.5.9
    if [ "$libc" = gnu ]; then
        tool cargo-deb 3.8.0
        tool cargo-generate-rpm 0.21.1
    fi
    rm -rf "$tools/build"
    export PATH=$tools/bin:$PATH
    CARGO_ZIGBUILD_ZIG_PATH=$("$tools/zig/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig
    export CARGO_ZIGBUILD_ZIG_PATH
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
        say "installing Rust's standard library for $target"
        rustup target add "$target"
    fi
}

# zigbuild WORD ...: cargo build for the target, with the words.
zigbuild() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} suffix=''
    # File names in messages and debug symbols start with these words on every machine.
    local prefixes=("$root=/redis-rl" "$cargo_home=/cargo")
    RUSTFLAGS="-C link-arg=-Wl,--build-id=sha1 $(printf -- '--remap-path-prefix=%s ' "${prefixes[@]}")"
    CFLAGS=$(printf -- '-ffile-prefix-map=%s ' "${prefixes[@]}")
    if [ "$libc" = gnu ]; then suffix=.$glibc; else RUSTFLAGS+=' -C target-feature=-crt-static'; fi
    export RUSTFLAGS CFLAGS
    # Run in a folder beside the tools: in one above them zig names its headers by relative paths, and bindgen, which runs
    # elsewhere, does not find them.
    (cd "$root/packaging" && cargo zigbuild --locked --release --target "$target$suffix" --target-dir "$build" "$@")
    unset RUSTFLAGS CFLAGS
}

# Leaves the library in $stage/libredis_rl.so, and its debug symbols in $stage/debug.
build_library() {
    local sysroot objcopy symbols id
    zigbuild --lib

    cp "$build/$target/release/libredis_rl.so" "$stage/linked.so"
    # Rust's own strip: that of the distribution may not support other architectures.
    sysroot=$(rustc --print sysroot)
    objcopy=(env "LD_LIBRARY_PATH=$sysroot/lib" "$sysroot/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy")
    id=$(readelf -nW "$stage/linked.so" | sed -n 's/.*Build ID: //p')
    [ -n "$id" ] || fail "the library has no build id"
    mkdir -p "$stage/debug/usr/lib/debug/.build-id/${id:0:2}"
    symbols=$stage/debug/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    "${objcopy[@]}" --only-keep-debug "$stage/linked.so" "$symbols"
    chmod 644 "$symbols"
    "${objcopy[@]}" --strip-all --remove-section=.comment --add-gnu-debuglink="$symbols" "$stage/linked.so" "$stage/libredis_rl.so"
    chmod 755 "$stage/libredis_rl.so"
    rm "$stage/linked.so"
    check "$stage/libredis_rl.so"
}

# Leaves the rate limit service in $stage/service/redis-rl-envoy.
build_service() {
    mkdir "$stage/service"
    CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
        zigbuild --manifest-path "$root/envoy/Cargo.toml" --bin redis-rl-envoy
    install -m 755 "$build/$target/release/redis-rl-envoy" "$stage/service"
    check "$stage/service/redis-rl-envoy"
}

# debian_files NAME FOLDER: changelog and copyright of a Debian package.
debian_files() {
    cat >"$2/changelog.Debian" <<TEXT
$1 ($version-1) unstable; urgency=medium

  * Release $version. What is new stands in changelog.gz.

 -- $(sed -n 's/^maintainer = "\(.*\)"/\1/p' Cargo.toml)  $(LC_ALL=C date -Ru -d "@$SOURCE_DATE_EPOCH")
TEXT
    cat - <(sed -e '1,4d' -e 's/^$/./' -e 's/^/ /' LICENSE) >"$2/copyright" <<TEXT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: redis-rl
Comment: It contains other works. Their licences are in THIRD-PARTY.txt.gz.

Files: *
Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE)
License: Expat
TEXT
}

# licences MANIFEST FOLDER: those of the crates that are linked in.
licences() {
    local crates
    mapfile -t crates < <(cargo tree --locked --manifest-path "$1" --target "$target" --edges normal,no-proc-macro --prefix none \
        --format '{p}' | sed -n 's/^\([^ ]*\) v\([^ ]*\).*/\1@\2/p' | grep -v '^redis-rl' | sort -u)
    cargo metadata --locked --manifest-path "$1" --format-version 1 --filter-platform "$target" |
        python3 packaging/third-party.py "${crates[@]}" >"$2/THIRD-PARTY.txt"
    gzip -9nc "$2/THIRD-PARTY.txt" >"$2/THIRD-PARTY.txt.gz"
}

# pages FOLDER: the documentation, with all files that it links to.
pages() {
    git ls-files -z -- '*.md' LICENSE docs docker deploy envoy/examples envoy/tests/live/envoy.yaml | xargs -0 cp --parents -t "$1"
    scripts/check-links.py "$1" >&2 || fail "there are dead links"
}

# Everything else that the packages contain.
collect_files() {
    local file kind
    # The settings of the container image except its network settings, with which a server listens on all addresses. The library is
    # where the server's systemd unit lets it be executed.
    awk -v RS= -v ORS='\n\n' '!/protected-mode/' docker/redis.conf |
        sed -e 's/, in a container\././' -e 's|/usr/local/lib/redis-rl/|/usr/lib/redis/modules/|' \
            -e 's/Allow the container/Allow the server/' -e '$d' >"$stage/redis.conf"
    if grep -E '^(bind|protected-mode)|container' "$stage/redis.conf"; then fail "docker/redis.conf has more for containers"; fi

    mkdir -p "$stage/doc" "$stage/functions"
    pages "$stage/doc"
    for kind in library script; do
        cat clients/go/lua/{$kind.head,core,$kind.tail}.lua >"$stage/functions/rl.$kind.lua"
    done

    licences Cargo.toml "$stage"
    debian_files redis-rl "$stage"
    gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
    for file in deb:/usr/lib rpm:/usr/lib64; do
        sed "s|@MODULE@|${file#*:}/redis/modules/libredis_rl.so|" packaging/load.conf.in >"$stage/load.${file%%:*}.conf"
    done
    if [ -d "$stage/service" ]; then
        licences envoy/Cargo.toml "$stage/service"
        debian_files redis-rl-envoy "$stage/service"
    fi
    # Modes are those of a fresh checkout, whatever the umask was.
    chmod -R u=rwX,go=rX "$stage"
}

# pack NAME FOLDER: FOLDER as $out/NAME.tar.gz.
pack() {
    tar -C "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
        --transform="s|^\./|$1/|;s|^\.\$|$1|" -c . | gzip -9n >"$out/$1.tar.gz"
}

# sbom MANIFEST NAME: the crates of a build, as $out/NAME.cdx.json.
sbom() {
    local made
    made=$(dirname "$1")/$2.cdx.json
    cargo cyclonedx --quiet --manifest-path "$1" --format json --spec-version 1.5 --target "$target" --no-build-deps \
        --override-filename "$2.cdx"
    # It contains the path of the build folder.
    sed "s|path+file://$root|path+file:///redis-rl|g; s|file://$root|file:///redis-rl|g" "$made" >"$out/$2.cdx.json"
    rm "$made"
}

package_service() {
    local name=redis-rl-envoy-$version-$target files=$stage/service/tarball
    mkdir "$files"
    cp -a "$stage"/service/{redis-rl-envoy,THIRD-PARTY.txt} "$stage"/doc/. "$files"
    cp envoy/packaging/{redis-rl-envoy.service,environment} "$files"
    chmod -R u=rwX,go=rX "$files"
    pack "$name" "$files"
    sbom envoy/Cargo.toml "$name"
    cargo deb --quiet --manifest-path envoy/Cargo.toml --no-build --no-strip --target "$target" \
        --output "$out/redis-rl-envoy_$version-1_$deb_arch.deb"
}

package() {
    local name=redis-rl-$version-$target
    mkdir "$stage/tarball"
    cp -a "$stage"/{libredis_rl.so,redis.conf,functions,THIRD-PARTY.txt} "$stage"/doc/. "$stage/tarball"
    pack "$name" "$stage/tarball"
    pack "$name-debug" "$stage/debug"

    sbom Cargo.toml "$name"

    if [ "$libc" = gnu ]; then
        cargo deb --quiet --no-build --no-strip --target "$target" --output "$out/redis-rl_$version-1_$deb_arch.deb"
        cargo generate-rpm --target "$target" --auto-req disabled --output "$out/redis-rl-$version-1.$arch.rpm"
        package_service
    fi
    rm -f "$out/SHA256SUMS"
    (cd "$out" && find . -maxdepth 1 -type f -printf '%P\0' | sort -z | xargs -0 sha256sum) >"$build/SHA256SUMS"
    mv "$build/SHA256SUMS" "$out"
}

target=$(rustc -vV | sed -n 's/^host: \(.*\)-[a-z]*$/\1-gnu/p')
out=$root/target/package
while [ $# -gt 0 ]; do
    case $1 in
        --target) target=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --pages) pages "$2"; exit ;;
        *) fail "unknown argument: $1 (the head of this file says which there are)" ;;
    esac
done
case $target in
    x86_64-unknown-linux-gnu | x86_64-unknown-linux-musl) arch=x86_64 deb_arch=amd64 ;;
    aarch64-unknown-linux-gnu | aarch64-unknown-linux-musl) arch=aarch64 deb_arch=arm64 ;;
    *) fail "unknown target: $target (the head of this file says which there are)" ;;
esac
libc=${target##*-}
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=$(cargo pkgid --locked)
version=${version##*[@#]}
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then SOURCE_DATE_EPOCH=$(git log -1 --format=%ct); fi
export SOURCE_DATE_EPOCH

install_tools
rm -rf "$stage"
mkdir -p "$stage"
build_library
if [ "$libc" = gnu ]; then build_service; fi
collect_files
package
say "the files are in $out"
