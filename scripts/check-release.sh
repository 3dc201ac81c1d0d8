#!/usr/bin/env bash
# Checks that the version is the same everywhere: Cargo.toml, the packages of clients/, the service of envoy/ and its chart, their lockfiles,
# and the first entry of CHANGELOG.md. Prints `version=0.2.0`.
#
#   scripts/check-release.sh             all agree; the entry may still say "unreleased"
#   scripts/check-release.sh v0.2.0      they also agree with this tag, and the entry has a date
#
# ROOT is the tree to check; the default is this one.
set -euo pipefail
cd "${ROOT:-$(dirname "$0")/..}"

tag=${1-}
failed=0
wrong() { printf 'release: %s\n' "$*" >&2; failed=1; }

# in_toml FILE TABLE: the version in that table of a TOML file.
in_toml() {
    awk -v table="[$2]" '
        /^\[/ { inside = $0 == table }
        inside && /^version *= *"/ { split($0, part, "\""); print part[2]; exit }' "$1"
}

# in_cargo_lock FILE PACKAGE: the version locked for a package.
in_cargo_lock() {
    awk -v name="name = \"$2\"" '
        $0 == name { found = 1; next }
        found { split($0, part, "\""); print part[2]; exit }' "$1"
}

# in_json FILE NUMBER: the NUMBERth version in a file of npm; the first ones are those of the package itself.
in_json() {
    awk -v number="$2" '/^ +"version": "/ && ++seen == number { split($0, part, "\""); print part[4]; exit }' "$1"
}

version=$(in_toml Cargo.toml package)
[[ $version =~ ^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}$ ]] || wrong "Cargo.toml has version '$version', not three numbers below 100"

# same WHERE VERSION
same() { [ "$2" = "$version" ] || wrong "$1 has version '$2', Cargo.toml has '$version'"; }
same Cargo.lock "$(in_cargo_lock Cargo.lock redis-rl)"
same clients/python/pyproject.toml "$(in_toml clients/python/pyproject.toml project)"
same clients/node/package.json "$(in_json clients/node/package.json 1)"
same clients/node/package-lock.json "$(in_json clients/node/package-lock.json 1)"
same 'clients/node/package-lock.json, in its list of packages,' "$(in_json clients/node/package-lock.json 2)"
same clients/rust/Cargo.toml "$(in_toml clients/rust/Cargo.toml package)"
same clients/rust/Cargo.lock "$(in_cargo_lock clients/rust/Cargo.lock redis-rl-client)"
same envoy/Cargo.toml "$(in_toml envoy/Cargo.toml package)"
same envoy/Cargo.lock "$(in_cargo_lock envoy/Cargo.lock redis-rl-envoy)"
chart=deploy/helm/redis-rl-envoy/Chart.yaml
same "$chart" "$(sed -n 's/^version: //p' "$chart")"
same "$chart (appVersion)" "$(sed -n 's/^appVersion: //p' "$chart")"

entry=$(sed -n 's/^## //p' CHANGELOG.md | head -n 1)
same 'the first entry of CHANGELOG.md' "${entry%%,*}"

if [ -n "$tag" ]; then
    [ "$tag" = "v$version" ] || wrong "the tag is '$tag', the version is '$version': the tag must be 'v$version'"
    [[ $entry =~ ,\ [0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
        wrong "the first entry of CHANGELOG.md is '$entry': it must end in the date of the release, as in '$version, 2027-01-31'"
fi
if [ $failed -ne 0 ]; then exit 1; fi
echo "version=$version"
