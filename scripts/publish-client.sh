#!/usr/bin/env bash
# Publishes one of the packages that scripts/build-clients.sh has built. A version that is already published is skipped, so a
# release that stopped halfway can be run again. The package for Python is published by an action of the workflow.
#
#   scripts/publish-client.sh npm FILE.tgz [--dry-run]
#   scripts/publish-client.sh crates [--dry-run]
#
# npm authenticates by OIDC, cargo by CARGO_REGISTRY_TOKEN.
set -euo pipefail
cd "$(dirname "$0")/.."

registry=${1:?npm or crates?}
shift
version=$(scripts/check-release.sh)
version=${version#version=}
say() { printf 'publish: %s\n' "$*" >&2; }

case $registry in
    npm)
        file=$(realpath "${1:?which file?}")
        shift
        if [ "$(npm view "redis-rl@$version" version 2>/dev/null)" = "$version" ]; then
            say "npm has redis-rl $version already"
            exit 0
        fi
        # Provenance needs the identity of a workflow run; a dry run has none.
        if [ "${1-}" = --dry-run ]; then provenance=(); else provenance=(--provenance); fi
        npm publish "$file" --access public "${provenance[@]}" "$@"
        ;;
    crates)
        # cargo cannot publish the built file: it packs the tree again, which is that of the tag.
        cd clients/rust
        if cargo info --quiet --registry crates-io "redis-rl-client@$version" >/dev/null 2>&1; then
            say "crates.io has redis-rl-client $version already"
            exit 0
        fi
        # It was built from its packed form by scripts/build-clients.sh, in a job that cannot publish. Nothing is built here.
        cargo publish --locked --no-verify "$@"
        ;;
    *) say "npm or crates, not $registry"; exit 2 ;;
esac
