#!/usr/bin/env bash
# Puts the path and the version under which a release is published into the module files, the imports and the page.
#
#   scripts/module-path.sh github.com/OWNER/redis-rl/clients/go v0.2.0
set -euo pipefail
cd "$(dirname "$0")/.."

path=${1:?which path?} version=${2:?which version?}
present=$(sed -n 's/^module //p' go.mod)
grep -rlF --include='*.go' --include=go.mod --include=README.md "$present" . ../faults/subjects/go |
    xargs sed -i "s|${present//./\\.}|$path|g"
sed -i "s|^\(\t*$path\) v.*|\1 $version|" grpclimit/go.mod
gofmt -l -w . >/dev/null
