#!/usr/bin/env bash
# A base that holds vLLM for CPU, as an OCI layout: the Debian of base.sh and the virtual environment ENVIRONMENT, moved to /opt/vllm.
# usage: vllm_base.sh FOLDER ENVIRONMENT   FOLDER has `base`; made once, 3 GB. Needs root, buildah, and Debian's Python of the same version.
set -euo pipefail
folder=$1 environment=$2
[ ! -d "$folder/vllm-base" ] || exit 0
[ -x "$environment/bin/vllm" ] || { echo "$environment is no environment with vLLM" >&2; exit 2; }
scratch=$(mktemp -d "$folder/.vllm-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
buildah=(buildah --root "$scratch/graph" --runroot "$scratch/run" --storage-driver overlay)
working=$("${buildah[@]}" from "oci:$folder/base:latest")
root=$("${buildah[@]}" mount "$working")
# Dovetail itself stays out: the image under test brings its own.
mkdir -p "$root/opt/vllm"
tar -C "$environment" --exclude='*dovetail*' --exclude='./lib/*.a' --exclude='./lib/*.dbg' --exclude='torch/include' \
    --exclude='torch/lib/*.a' --exclude='site-packages/pip' --exclude='site-packages/pip-*' --exclude=./.cache -cf - . | tar -C "$root/opt/vllm" -xf -
ln -sfn /usr/bin/python3 "$root/opt/vllm/bin/python3"
ln -sfn python3 "$root/opt/vllm/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$root/opt/vllm/pyvenv.cfg"
# vLLM's processes import this file again.
printf '#!/opt/vllm/bin/python3\nimport sys\nfrom vllm.entrypoints.cli.main import main\nif __name__ == "__main__":\n    sys.exit(main())\n' \
    >"$root/opt/vllm/bin/vllm"
chown -R 0:0 "$root/opt/vllm"
"${buildah[@]}" umount "$working" >/dev/null
# What vLLM needs on a CPU, and where it may write in a sandbox.
"${buildah[@]}" config --env PATH=/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin --env TORCHDYNAMO_DISABLE=1 --env VLLM_CPU_KVCACHE_SPACE=1 \
    --env VLLM_NO_USAGE_STATS=1 --env HF_HUB_OFFLINE=1 --env VLLM_CACHE_ROOT=/tmp/vllm --env TORCHINDUCTOR_CACHE_DIR=/tmp/inductor "$working"
# Without --timestamp, because compiled modules are valid for the time of their source.
"${buildah[@]}" commit --quiet "$working" "oci:$scratch/vllm-base:latest" >/dev/null
mv "$scratch/vllm-base" "$folder/vllm-base"
