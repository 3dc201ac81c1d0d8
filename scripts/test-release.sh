#!/usr/bin/env bash
# Tests the release scripts with copies and stubs: nothing is built, sent or published. `make lint` runs it.
#
# shellcheck disable=SC2317,SC2329 # Functions are called by succeeds and refuses.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# succeeds NAME COMMAND ...: the command must succeed. refuses NAME PATTERN COMMAND ...: it must fail, with PATTERN in its output.
succeeds() {
    local name=$1
    shift
    "$@" >"$work/out" 2>&1 || { echo "not ok: $name"; cat "$work/out"; failed=1; }
}
refuses() {
    local name=$1 pattern=$2
    shift 2
    if "$@" >"$work/out" 2>&1; then
        echo "not ok: $name was accepted"
        failed=1
    elif ! grep -q -e "$pattern" "$work/out"; then
        echo "not ok: $name: no '$pattern' in"
        cat "$work/out"
        failed=1
    fi
}
# says NAME PATTERN: PATTERN must be in the output of the last command.
says() { grep -q -e "$2" "$work/out" || { echo "not ok: $1: no '$2' in"; cat "$work/out"; failed=1; }; }

# The version, in every file that has it.
version=$(scripts/check-release.sh)
version=${version#version=}
files=(Cargo.toml Cargo.lock CHANGELOG.md clients/python/pyproject.toml clients/node/package.json clients/node/package-lock.json
    clients/rust/Cargo.toml clients/rust/Cargo.lock envoy/Cargo.toml envoy/Cargo.lock
    deploy/helm/redis-rl-envoy/Chart.yaml)
tree() {
    rm -rf "$work/tree"
    mkdir "$work/tree"
    cp --parents "${files[@]}" "$work/tree"
    # A release needs a date; give this copy one.
    sed -i "0,/^## .*/s//## $version, 2027-01-31/" "$work/tree/CHANGELOG.md"
}
check() { ROOT=$work/tree scripts/check-release.sh "$@"; }
tree
succeeds 'a tree as it is to be tagged' check "v$version"
says 'the version is told' "^version=$version\$"
refuses 'a tag without v' 'the tag must be' check "$version"
refuses 'another tag' 'the tag must be' check v99.0.0
sed -i "s/^## $version, .*/## $version, unreleased/" "$work/tree/CHANGELOG.md"
succeeds 'a tree without a date, untagged' check
refuses 'a tree without a date, tagged' 'date of the release' check "v$version"
# Change the nth version in a file: the check must read each of them.
other=98.99.97
while read -r file line; do
    tree
    sed -i "${line}s/$version/$other/" "$work/tree/$file"
    refuses "another version in $file" "has version" check
done < <(for file in "${files[@]}"; do
    case $file in
        CHANGELOG.md) grep -n "^## $version" "$file" ;;
        clients/node/package-lock.json) grep -n "\"version\": \"$version\"" "$file" | head -n 2 ;;
        Cargo.lock) grep -n -A1 '^name = "redis-rl"$' "$file" | tail -n 1 ;;
        clients/rust/Cargo.lock) grep -n -A1 '^name = "redis-rl-client"$' "$file" | tail -n 1 ;;
        envoy/Cargo.lock) grep -n -A1 '^name = "redis-rl-envoy"$' "$file" | tail -n 1 ;;
        */Chart.yaml) grep -n -i "version: $version\$" "$file" ;;
        *) grep -n "version\"\?[ =:]*\"$version\"" "$file" ;;
    esac | sed -E "s|^([0-9]+).*|$file \1|"
done)

# The notes.
succeeds 'notes' scripts/release-notes.sh 0.1.0
says 'notes' 'RL.SLIDING'
refuses 'notes of a version that is not there' 'no entry' scripts/release-notes.sh 99.0.0

# Collecting what was built. The libraries are only the first bytes of an ELF header.
elf() { printf '\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0%b\0' "$1"; }
built() {
    rm -rf "$work/built" "$work/release"
    local triple machine folder
    for triple in {x86_64,aarch64}-unknown-linux-{gnu,musl}; do
        case $triple in x86_64*) machine='\x3e' ;; *) machine='\xb7' ;; esac
        folder=$work/built/$triple
        mkdir -p "$folder/redis-rl"
        elf "$machine" >"$folder/redis-rl/libredis_rl.so"
        tar -czf "$folder/redis-rl-$triple.tar.gz" -C "$folder" redis-rl
        rm -r "$folder/redis-rl"
        case $triple in
            *-gnu)
                elf "$machine" >"$folder/redis-rl-envoy"
                tar -czf "$folder/redis-rl-envoy-$triple.tar.gz" -C "$folder" ./redis-rl-envoy
                rm "$folder/redis-rl-envoy"
                ;;
        esac
        echo 'symbols' >"$folder/redis-rl-$triple.debug"
        (cd "$folder" && sha256sum -- * >SHA256SUMS)
    done
    mkdir "$work/built/clients"
    echo 'a package' >"$work/built/clients/redis-rl.tgz"
}
collect() { scripts/release-collect.sh "$work/built" "$work/release"; }
built
succeeds 'four targets' collect
for library in amd64/glibc amd64/musl arm64/glibc arm64/musl; do
    succeeds "the library for $library" test -x "$work/release/library/$library/libredis_rl.so"
done
for arch in amd64 arm64; do
    succeeds "the service for $arch" test -x "$work/release/service/$arch/redis-rl-envoy"
done
succeeds 'the sums are right' bash -c "cd '$work/release/assets' && sha256sum --check --strict SHA256SUMS"
succeeds 'every file has a sum' test "$(wc -l <"$work/release/assets/SHA256SUMS")" -eq 11
built
rm -r "$work/built/aarch64-unknown-linux-musl"
refuses 'a target that is missing' '0 tarballs' collect
built
echo 'more' >>"$work/built/x86_64-unknown-linux-gnu/redis-rl-x86_64-unknown-linux-gnu.tar.gz"
refuses 'a file that is not as it was built' 'SHA256SUMS' collect
built
rm "$work"/built/aarch64-unknown-linux-gnu/{redis-rl-envoy-*,SHA256SUMS}
refuses 'a service that is missing' '0 tarballs with redis-rl-envoy' collect
built
echo 'another' >"$work/built/clients/redis-rl-x86_64-unknown-linux-gnu.debug"
refuses 'two files of one name' 'different contents' collect
built
cp "$work"/built/x86_64-unknown-linux-musl/*.gz "$work/other.tar.gz"
rm "$work"/built/aarch64-unknown-linux-musl/*
mv "$work/other.tar.gz" "$work/built/aarch64-unknown-linux-musl/"
refuses 'a library for another machine' 'is for another machine' collect

# The release page, with a stub of `gh` that records its calls.
mkdir "$work/bin"
cat >"$work/bin/gh" <<'GH'
#!/bin/sh
echo "gh $*" >>"$GH_LOG"
case "$1 $2" in
    'release view') cat "$GH_STATE" 2>/dev/null || exit 1 ;;
    'release create') cat >"$GH_LOG.notes"; echo true >"$GH_STATE" ;;
    'release edit') echo false >"$GH_STATE" ;;
esac
GH
chmod +x "$work/bin/gh"
export GH_LOG=$work/gh.log GH_STATE=$work/gh.state
github() { PATH=$work/bin:$PATH scripts/release-github.sh "$@"; }
built
collect >/dev/null
refuses 'a release without a draft' 'no draft' github publish "v$version"
succeeds 'a draft' github draft "v$version" "$work/release/assets"
succeeds 'its notes' grep -q 'RL.ALL' "$GH_LOG.notes"
succeeds 'it is checked that the tag is there' grep -q 'create .*--draft --verify-tag' "$GH_LOG"
succeeds 'a draft once more' github draft "v$version" "$work/release/assets"
succeeds 'one draft, files twice' test "$(grep -c create "$GH_LOG")" -eq 1 -a "$(grep -c 'upload.*SHA256SUMS' "$GH_LOG")" -eq 2
succeeds 'publication' github publish "v$version"
succeeds 'publication once more' github publish "v$version"
refuses 'other files for what is public' 'its files stay' github draft "v$version" "$work/release/assets"
echo x >>"$work/release/assets/redis-rl.tgz"
rm "$GH_STATE"
refuses 'files that changed on their way' 'WARNING' github draft "v$version" "$work/release/assets"

# The registries, with stubs that have one version.
cat >"$work/bin/npm" <<'NPM'
#!/bin/sh
if [ "$1" = view ]; then [ -n "$PUBLISHED" ] && echo "$PUBLISHED" || exit 1; else echo "npm $*"; fi
NPM
cat >"$work/bin/cargo" <<'CARGO'
#!/bin/sh
if [ "$1" = info ]; then [ -n "$PUBLISHED" ]; else echo "cargo $*"; fi
CARGO
chmod +x "$work"/bin/{npm,cargo}
client() { PATH=$work/bin:$PATH scripts/publish-client.sh "$@"; }
export PUBLISHED=
succeeds 'npm' client npm "$work/built/clients/redis-rl.tgz"
says 'npm: provenance' 'npm publish .*redis-rl.tgz --access public --provenance$'
succeeds 'npm, dry' client npm "$work/built/clients/redis-rl.tgz" --dry-run
says 'npm, dry' 'npm publish .* --dry-run$'
succeeds 'crates.io' client crates
says 'crates.io' 'cargo publish --locked --no-verify$'
export PUBLISHED=$version
succeeds 'npm has it' client npm "$work/built/clients/redis-rl.tgz"
says 'npm has it' 'already'
succeeds 'crates.io has it' client crates
says 'crates.io has it' 'already'

if [ $failed -eq 0 ]; then echo 'the scripts of a release: ok'; fi
exit $failed
