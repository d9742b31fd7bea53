#!/usr/bin/env bash
# Makes the environments that `python -m benchmarks.rendering` asks: FOLDER/minijinja (10 MB) and FOLDER/vllm, which is that of
# benchmarks/reading and what vLLM's renderers want besides.
# usage: setup.sh FOLDER [PYTHON]
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER [PYTHON]}
python=${2:-python3}
"$(dirname "$0")/../reading/setup.sh" "$folder" "$python" vllm

# install ENVIRONMENT PACKAGE…: once, and again when the packages change.
install() {
    [[ -f "$folder/$1/.rendering" && "$(cat "$folder/$1/.rendering")" == "${*:2}" ]] && return
    echo "installing ${*:2} in $folder/$1" >&2
    "$folder/$1/bin/python" -m pip install --disable-pip-version-check --no-warn-conflicts -qq "${@:2}"
    echo "${*:2}" >"$folder/$1/.rendering"
}

install vllm llguidance==1.9.1 einops==0.8.2
[[ -d "$folder/minijinja" ]] || "$python" -m venv "$folder/minijinja"
install minijinja minijinja==3.0.5
