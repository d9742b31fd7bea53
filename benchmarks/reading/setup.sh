#!/usr/bin/env bash
# Makes an environment of its own for each engine that Dovetail's readers are measured beside.
# usage: setup.sh FOLDER [PYTHON [ENGINE…]]   FOLDER/vllm (2.2 GB, most of it torch) and FOLDER/sglang (300 MB), or only
# those named; done once.
#
# Only what their parsers need: the engines' wheels without the GPU packages they ask for. torch comes first, alone and
# exact, so that no resolver can bring CUDA packages.
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER [PYTHON [ENGINE…]]}
python=${2:-python3}
engines=" ${*:3} "
cpu_index=https://download.pytorch.org/whl/cpu

wanted() { [[ "$engines" == "  " || "$engines" == *" $1 "* ]]; }

# The last line of a set-up that went through; it changes with the packages, so an older environment is made again.
made() { [[ -f "$folder/$1/.made" && "$(cat "$folder/$1/.made")" == "$2" ]]; }

environment() {
    echo "setting up $folder/$1" >&2
    rm -rf "${folder:?}/$1"
    "$python" -m venv "$folder/$1"
}

# pip's resolver complains about what the engines ask for and do not get here: that is expected.
install() { "$folder/$1/bin/python" -m pip install --disable-pip-version-check --no-warn-conflicts -qq "${@:2}"; }

vllm=(
    transformers==5.19.0 numpy==2.3.5 packaging==26.3 openai==3.51.0 psutil==7.2.2 cbor2==6.2.1 pyzmq==27.3.0
    urllib3==2.8.0 aiohttp==3.14.5 requests==2.34.2 oss-harmony==0.0.11 fastapi==0.136.3 pillow==13.0.0
    pybase64==1.5.1 cachetools==8.0.0 prometheus-client==0.26.0 msgspec==0.22.0 cloudpickle==3.1.2 uvloop==0.23.0
    py-cpuinfo==9.0.0 partial-json-parser==0.2.1.1.post7 ijson==3.6.0 mistral_common==1.13.1 orjson==3.13.0
    tiktoken==0.14.0 apache-tvm-ffi==0.1.15.post2 cohere-melody==0.15.3
)
if wanted vllm && ! made vllm "vllm==0.33.0 torch==2.13.0 ${vllm[*]}"; then
    environment vllm
    install vllm torch==2.13.0+cpu 2>/dev/null || install vllm --index-url "$cpu_index" torch==2.13.0
    install vllm "${vllm[@]}"
    install vllm --no-deps vllm==0.33.0 xgrammar==0.2.8
    echo "vllm==0.33.0 torch==2.13.0 ${vllm[*]}" >"$folder/vllm/.made"
fi

# deepseek-recipe: what SGLang itself reads DeepSeek-V4 with.
sglang=(
    orjson==3.13.0 pydantic==2.14.3 partial-json-parser==0.2.1.1.post7 msgspec==0.22.0 openai==3.51.0
    regex==2026.11.15 tokenizers==0.23.2
)
if wanted sglang && ! made sglang "sglang==0.5.23 ${sglang[*]}"; then
    environment sglang
    install sglang "${sglang[@]}"
    install sglang --no-deps sglang==0.5.23 deepseek-recipe==0.2.0
    echo "sglang==0.5.23 ${sglang[*]}" >"$folder/sglang/.made"
fi
