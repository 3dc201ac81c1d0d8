#!/usr/bin/env bash
# The release page, with `gh`. It is created as a draft, which is not public, and published after everything else.
#
#   scripts/release-github.sh draft v0.2.0 DIR     a draft with the notes of CHANGELOG.md and the files of DIR
#   scripts/release-github.sh publish v0.2.0       makes it public
#
# Both can be repeated: a draft gets the files again. The files of a public release are never changed.
set -euo pipefail
cd "$(dirname "$0")/.."

step=${1:?draft or publish?}
tag=${2:?which tag?}

# draft: true or false; nothing if there is no release.
state() { gh release view "$tag" --json isDraft --jq .isDraft 2>/dev/null || true; }

case $step in
    draft)
        folder=$(realpath "${3:?which files?}")
        (cd "$folder" && sha256sum --check --strict --quiet SHA256SUMS)
        case $(state) in
            '')
                scripts/release-notes.sh "${tag#v}" |
                    gh release create "$tag" --draft --verify-tag --title "redis-rl ${tag#v}" --notes-file -
                ;;
            true) ;;
            *) echo "release: $tag is public already, and its files stay" >&2; exit 1 ;;
        esac
        gh release upload "$tag" --clobber -- "$folder"/*
        ;;
    publish)
        case $(state) in
            '') echo "release: there is no draft of $tag" >&2; exit 1 ;;
            true) gh release edit "$tag" --draft=false --latest ;;
            *) echo "release: $tag is public already" >&2 ;;
        esac
        ;;
    *) echo "release: draft or publish, not $step" >&2; exit 2 ;;
esac
