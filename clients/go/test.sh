#!/usr/bin/env bash
# Checks and tests the package, on live servers. MODULE is the module's file (target/release/libredis_rl.so of the repository
# unless set), SERVER the server. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v go >/dev/null; then
    printf '\n%s\n%s\n\n' '*** THERE IS NO GO HERE: THE PACKAGE FOR GO IS NOT TESTED ***' '*** (https://go.dev/dl, 1.24 or later) ***' >&2
    exit 0
fi

# go vet is part of the lint, and is not repeated with each test binary.
./lint.sh
export GOFLAGS="${GOFLAGS:-} -vet=off"
for module in . grpclimit; do
    (cd $module && go test -race -count=1 -timeout 5m "$@" ./...)
done

# The newest go-redis, where it can be fetched and this Go can build it. The one in go.mod is the oldest. The programs of the page
# have a go.mod of their own, and were built already.
newest=$(mktemp -d)
trap 'rm -r "$newest"' EXIT
cp go.mod go.sum "$newest"
if GOTOOLCHAIN=local go get -modfile="$newest/go.mod" github.com/redis/go-redis/v9@latest 2>"$newest/why"; then
    go test -modfile="$newest/go.mod" -skip '^TestReadme$' -count=1 -timeout 5m "$@" .
else
    sed 's/^/the newest go-redis is not tested: /' "$newest/why" >&2
fi

go test -run '^$' -fuzz FuzzRate -fuzztime 5s .
