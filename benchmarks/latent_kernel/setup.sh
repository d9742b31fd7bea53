#!/usr/bin/env bash
# Takes other engines' decode kernels for latents out of their wheels, for benchmarks.latent_kernel: vLLM's and SGLang's in
# Triton, and FlashMLA as vLLM builds it (sm_90 and sm_100). Done once.
# usage: setup.sh FOLDER PYTHON
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER PYTHON} python=${2:?usage: setup.sh FOLDER PYTHON}
[[ -f "$folder/.made" ]] && exit

echo "setting up $folder" >&2
mkdir -p "$folder"
for package in vllm==0.33.0 sglang==0.5.23; do
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheel" "$package"
    "$python" - "$folder"/wheel/*.whl "$folder" <<'END'
import sys, zipfile
from pathlib import Path

wheel, folder = sys.argv[1:]
wanted = {
    "vllm/v1/attention/ops/triton_decode_attention.py": "vllm_triton.py",
    "sglang/kernels/ops/attention/decode_attention.py": "sglang_triton.py",
    "vllm/_flashmla_C.abi3.so": "flashmla.so",
}
with zipfile.ZipFile(wheel) as archive:
    for name in set(archive.namelist()) & set(wanted):
        (Path(folder) / wanted[name]).write_bytes(archive.read(name))
END
    rm -r "$folder/wheel"
done
touch "$folder/.made"
