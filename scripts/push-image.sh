#!/usr/bin/env bash
# Pushes an image of several architectures from an OCI archive, with skopeo. It builds nothing.
#
#   scripts/push-image.sh FILE.tar REGISTRY/NAME VERSION KIND
#
# KIND is the kind of image: library, envoy, redis, valkey-alpine. The image gets the tags VERSION-KIND and KIND. Prints
# `image=registry/name` and `digest=sha256:…` for the attestation. SKOPEO_FLAGS go to skopeo, for a registry without TLS.
set -euo pipefail

archive=${1:?which file?}
# Names of images must be in lower case, names of repositories need not be.
image=${2,,}
version=${3:?which version?}
kind=${4:?which kind?}
read -ra flags <<<"${SKOPEO_FLAGS:-}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for tag in "$version-$kind" "$kind"; do
    # All architectures, byte for byte, so that the digest is that of the file.
    skopeo copy --all --preserve-digests "${flags[@]}" --digestfile "$folder/$tag" \
        "oci-archive:$archive" "docker://$image:$tag" >&2
done
cmp -s "$folder/$version-$kind" "$folder/$kind" || { echo 'release: two digests of one image' >&2; exit 1; }
echo "image=$image"
echo "digest=$(cat "$folder/$kind")"
