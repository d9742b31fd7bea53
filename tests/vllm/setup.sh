#!/usr/bin/env bash
# Makes the environment of tests/vllm: FOLDER/vllm-cpu, vLLM 0.32 on CPU (2.5 GB, most of it torch) and in it this
# checkout of Dovetail with its plugins, and torchvision, which models that see import. vLLM is set up once, Dovetail
# whenever its pyproject.toml has changed.
# usage: setup.sh FOLDER   (with python3.11 on the PATH)
set -euo pipefail

folder=${1:?usage: setup.sh FOLDER}
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/benchmarks/engine/setup.sh" "$folder"
python=$folder/vllm-cpu/bin/python
[[ -x "$python" ]] || { echo "no vLLM to test with" >&2; exit 2; }

made=$folder/vllm-cpu/.dovetail
cmp -s "$root/pyproject.toml" "$made" && exit
echo "installing dovetail into $folder/vllm-cpu" >&2
torch=$("$python" -c 'from importlib.metadata import version; print(version("torch"))')
# The build of torch that vLLM was compiled for has to stay.
"$python" -m pip --disable-pip-version-check -qq install --editable "$root" torchvision==0.28.0 \
    --constraint <(echo "torch==$torch")
if ! "$python" -c "import torchvision" 2>/dev/null; then
    # PyPI's build has operators for CUDA only. No model here uses them, but they are registered by this module.
    : >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/_meta_registrations.py"
    "$python" -c "import torchvision"
fi
cp "$root/pyproject.toml" "$made"
