#!/usr/bin/env bash
# Makes the environment of tests/sglang: FOLDER/sglang-cpu, SGLang 0.5.23 with a CPU build of torch, and without what
# only a GPU needs (2 GB, most of it torch). tests/sglang/kernels stands for SGLang's kernels.
# usage: setup.sh FOLDER   (with python3.11 on the PATH)
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER}/sglang-cpu
[[ -e "$folder/.made" ]] && exit
python3.11 -m venv "$folder"
install() { "$folder/bin/python" -m pip --disable-pip-version-check -qq install "$@"; }
install torch==2.13.0 numpy
install --no-deps sglang==0.5.23
# What its server imports on a CPU, in the versions that it asks for.
install torch==2.13.0 IPython aiohttp apache-tvm-ffi==0.1.11 blobfile==3.0.0 compressed-tensors==0.18.0 datasets distro \
    easydict einops fastapi gguf interegular 'kernels<0.15' 'llguidance<2' mistral_common modelscope msgspec ninja numba \
    nvidia-ml-py openai==2.8.0 openai-harmony==0.0.4 orjson outlines==0.1.11 partial_json_parser pillow prometheus-client \
    psutil py-spy pybase64 pydantic python-multipart pyzmq requests scipy sentencepiece==0.2.1 setproctitle \
    soundfile==0.13.1 tiktoken timm==1.0.25 tokenizers==0.23.2 tqdm transformers==5.19.0 uvicorn uvloop watchfiles \
    xgrammar==0.2.7 xxhash zstandard
touch "$folder/.made"
