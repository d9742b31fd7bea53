"""Further options for vLLM: those that a setting or Dovetail itself decides are refused, under all their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import PlanError
from dovetail.plan import resolve
from dovetail.plan.emit.extra_options import check


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "--enforce-eager --data_parallel_multi=true",
            "with --data-parallel-multi Dovetail could not reach the engine",
        ),
        ("-dpm", "with -dpm Dovetail could not reach the engine"),
        ("--enforce-eager -- x", "with -- Dovetail could not reach the engine"),
        ("--max-model 10", "use the setting --context instead of --max-model"),
        ("--no-enable-prefix", "use the setting --prefix-caching instead of --no-enable-prefix"),
        ("-tp=2", "use the setting --tensor-parallel-size instead of -tp"),
        ("-qfp8", "use the setting --quantization instead of -qfp8"),
        ("--spec-method ngram", "use the setting --[a-z-]+ instead of --spec-method"),
        ("--structured-outputs-config.backend x", "--grammar-backend instead of --structured-outputs-config"),
        ("--reasoning kimi_k2", "with --reasoning vLLM would constrain an answer only after its reasoning"),
        ("--model other", "^--model names a model: give it as the first argument instead"),
        ("--skip_tokenizer", "with --skip-tokenizer vLLM could not constrain answers to a grammar"),
        ("--tokens-only", "with --tokens-only vLLM could not constrain answers to a grammar"),
        ("--scheduler-cls x.Y", "gate enters vLLM through --scheduler-cls: use --gate and its limits"),
        ("--additional-config.dovetail.gate off", "gate enters vLLM through --additional-config"),
        ("x --enforce-eager", "it must start with an option of vLLM, not with 'x'"),
        ("'", "a shell could not read it: No closing quotation"),
    ],
)
def test_options_that_dovetail_sets_are_refused(text: str, message: str) -> None:
    """vLLM's parser, argparse, accepts other names and the beginning of a name."""
    with pytest.raises(PlanError, match=message):
        check(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-fa on -c 4096", "use the setting --context instead of -c"),
        ("--parallel 2", "use the setting --max-batch instead of --parallel"),
        ("--n_gpu_layers 9", "use the setting --gpu-layers instead of --n-gpu-layers"),
        ("-ctk q8_0", "use the setting --kv-cache-dtype instead of -ctk"),
        ("--model-draft x.gguf", "use the setting --drafter instead of --model-draft"),
        ("--draft-max 4", "use the setting --draft-tokens instead of --draft-max"),
        ("--spec-type ngram-mod", "use the setting --method instead of --spec-type"),
        ("--host 0.0.0.0", "with --host Dovetail could not reach the engine"),
        ("--api-key x", "with --api-key Dovetail could not reach the engine"),
        ("-hf a/b", "^-hf names a model: give it as the first argument instead"),
        ("--embeddings", "with --embeddings llama.cpp would not complete text"),
        ("mlock", "it must start with an option of llama.cpp, not with 'mlock'"),
    ],
)
def test_options_of_llama_cpp_that_dovetail_sets_are_refused(text: str, message: str) -> None:
    """Its parser knows no beginnings of names, and takes _ for -."""
    with pytest.raises(PlanError, match=message):
        check(text, "llama.cpp")
    check("-fa on --mlock --spec-draft-n-min 2 --ctx-checkpoints 4", "llama.cpp")


@pytest.mark.parametrize("text", ["-dc {} -ep --hf-overrides={}", "--max-logprobs -1", "--tokenizer-mode slow", "-"])
def test_other_options_are_passed_on(text: str) -> None:
    check(text)


def test_a_refusal_names_the_source(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("engine_args: --port 1\n")
    with pytest.raises(PlanError, match=r"^engine_args is '--port 1' \(config file\): use the setting --port"):
        resolve(None, {"engine": "vllm"}, config=config)
