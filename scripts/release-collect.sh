#!/usr/bin/env bash
# Collects what was built for each target.
#
#   scripts/release-collect.sh IN OUT
#
# IN has a folder for each target, named by its triple, as scripts/package.sh fills them, and may have other folders. Each folder
# with a SHA256SUMS is checked against it. OUT receives
#
#   assets/                                all files in one folder with one SHA256SUMS: the files of a release
#   library/ARCH/LIBC/libredis_rl.so       the libraries from the tarballs, for the images: ARCH is amd64 or arm64, as in
#                                          container images, LIBC glibc or musl
#   service/ARCH/redis-rl-envoy            the rate limit service, for its image
set -euo pipefail

in=$(realpath "${1:?from which folder?}")
out=${2:?into which folder?}
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

[ ! -e "$out" ] || fail "$out is there already"
mkdir -p "$out/assets" "$out/library" "$out/service"
out=$(realpath "$out")

for folder in "$in"/*/; do
    if [ -f "$folder/SHA256SUMS" ]; then
        (cd "$folder" && sha256sum --check --strict --quiet SHA256SUMS) || fail "$folder is not what its SHA256SUMS says"
    fi
    for file in "$folder"*; do
        name=$(basename "$file")
        [ "$name" != SHA256SUMS ] || continue
        [ -f "$file" ] || fail "$file is not a file"
        if [ -e "$out/assets/$name" ]; then
            cmp -s "$file" "$out/assets/$name" || fail "$name is in several folders, with different contents"
        fi
        cp "$file" "$out/assets/$name"
    done
done

# extract TRIPLE NAME TARGET MACHINE: the one file of this name in the tarballs of a target. MACHINE is that of the ELF header,
# as two bytes in hexadecimal digits.
extract() {
    local tarball member header found=0
    for tarball in "$in/$1"/*.tar.*; do
        [ -f "$tarball" ] || continue
        member=$(tar -tf "$tarball" | grep -E "(^|/)$2\$") || continue
        [ "$(wc -l <<<"$member")" -eq 1 ] || fail "$tarball holds $2 several times"
        found=$((found + 1))
        mkdir -p "$(dirname "$3")"
        tar -xOf "$tarball" "$member" >"$3"
        # A server refuses a module without the execute bit.
        chmod 755 "$3"
    done
    [ $found -eq 1 ] || fail "$found tarballs with $2 in $in/$1, not one"
    # 64 bits, little-endian; a shared object, as programs are, too, for that machine.
    header=$(od -An -tx1 -w20 -N20 "$3")
    case $header in
        ' 7f 45 4c 46 02 01 '*" 03 00 $4") ;;
        *) fail "$2 of $1 is for another machine" ;;
    esac
}
# library TRIPLE ARCH LIBC MACHINE, service TRIPLE ARCH MACHINE
library() { extract "$1" libredis_rl.so "$out/library/$2/$3/libredis_rl.so" "$4"; }
service() { extract "$1" redis-rl-envoy "$out/service/$2/redis-rl-envoy" "$3"; }
library x86_64-unknown-linux-gnu amd64 glibc '3e 00'
library aarch64-unknown-linux-gnu arm64 glibc 'b7 00'
library x86_64-unknown-linux-musl amd64 musl '3e 00'
library aarch64-unknown-linux-musl arm64 musl 'b7 00'
service x86_64-unknown-linux-gnu amd64 '3e 00'
service aarch64-unknown-linux-gnu arm64 'b7 00'

(cd "$out/assets" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
cat "$out/assets/SHA256SUMS"
