#!/usr/bin/env bash
# Checks formatting, go vet and, where it is there, staticcheck, of the package and of its subject in the fault suite. Where there is no Go it
# says so.
set -euo pipefail
cd "$(dirname "$0")"

command -v go >/dev/null || { echo 'go is not here: the package for Go is not checked' >&2; exit 0; }
for module in . grpclimit ../faults/subjects/go; do
    (
        cd $module
        unformatted=$(gofmt -l .)
        [ -z "$unformatted" ] || { printf 'gofmt would change %s\n' $unformatted >&2; exit 1; }
        go vet ./...
        if command -v staticcheck >/dev/null; then staticcheck ./...; fi
    )
done
command -v staticcheck >/dev/null || echo 'staticcheck is not here: go vet alone has looked at the package for Go' >&2
