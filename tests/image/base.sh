#!/usr/bin/env bash
# A Debian with Python as an OCI layout, from Debian's packages: usage: base.sh FOLDER [SUITE]. Made once, in a minute; needs root,
# mmdebstrap and buildah. The same packages give the same layout. libnuma1 is for vLLM on CPU.
set -euo pipefail
folder=$1 suite=${2:-bookworm}
[ ! -d "$folder/base" ] || exit 0
for program in mmdebstrap buildah bwrap; do
    command -v "$program" >/dev/null || { echo "install it first: apt-get install mmdebstrap buildah bubblewrap ($program is missing)" >&2; exit 2; }
done
mkdir -p "$folder"
scratch=$(mktemp -d "$folder/.base-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export SOURCE_DATE_EPOCH=0
mmdebstrap --quiet --mode=root --variant=essential --format=tar --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=usr-is-merged,ca-certificates,libnuma1,libstdc++6,python3 --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' "$suite" "$scratch/base.tar"
# A storage of its own, so that nothing is left in the machine's.
buildah=(buildah --root "$scratch/graph" --runroot "$scratch/run" --storage-driver vfs)
working=$("${buildah[@]}" from scratch)
"${buildah[@]}" add --quiet "$working" "$scratch/base.tar" /
"${buildah[@]}" commit --quiet --timestamp 0 "$working" "oci:$scratch/base:latest"
mv "$scratch/base" "$folder/base"
