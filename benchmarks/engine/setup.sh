#!/usr/bin/env bash
# Makes the environment of vLLM on CPU that `python -m benchmarks.engine` asks: FOLDER/vllm-cpu (2.5 GB, most of it torch), once.
# transformers is among the project's own tools. Where the recipe for vLLM is not beside the checkout, there is no vLLM,
# and its rows say so.
# usage: setup.sh FOLDER   (with python3.11 on the PATH, for which there is that vLLM)
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER}
recipe=$(cd "$(dirname "$0")/../.." && pwd)/../shared/vllm-cpu

[[ -e "$folder/vllm-cpu/.made" ]] && exit
if [[ ! -e "$recipe/setup.sh" ]]; then
    echo "no $recipe: vLLM is left out (--vllm names an environment that has it)" >&2
    exit
fi
echo "setting up $folder/vllm-cpu" >&2
rm -rf "${folder:?}/vllm-cpu"
mkdir -p "$folder"
bash "$recipe/setup.sh" "$folder/vllm-cpu"
touch "$folder/vllm-cpu/.made"
