#!/usr/bin/env bash
# Pushes an image of several architectures, as it lies in an OCI archive, with skopeo. It builds nothing.
#
#   scripts/push-image.sh FILE.tar REGISTRY/NAME VERSION KIND
#
# KIND is what the image is: library, redis, valkey-alpine. The image gets the tags VERSION-KIND and KIND. Prints, for what
# attests the image, `image=registry/name` and `digest=sha256:…`. SKOPEO_FLAGS go to skopeo, for a registry without TLS.
set -euo pipefail

archive=${1:?which file?}
# Names of images have no capitals, names of repositories may have some.
image=${2,,}
version=${3:?which version?}
kind=${4:?which kind?}
read -ra flags <<<"${SKOPEO_FLAGS:-}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for tag in "$version-$kind" "$kind"; do
    # All architectures, and the bytes as they are, so that the digest is that of the file.
    skopeo copy --all --preserve-digests "${flags[@]}" --digestfile "$folder/$tag" \
        "oci-archive:$archive" "docker://$image:$tag" >&2
done
cmp -s "$folder/$version-$kind" "$folder/$kind" || { echo 'release: two digests of one image' >&2; exit 1; }
echo "image=$image"
echo "digest=$(cat "$folder/$kind")"
