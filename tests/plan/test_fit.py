"""Pairs and settings that do not fit are refused, with both sides' values and a way out; other problems are advice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import Target, read_target
from dovetail.errors import PlanError
from dovetail.plan import fit, hardware, pairing
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.layers import Setting
from tests.checkpoints.configs import (
    DEEPSEEK_V32,
    KIMI_EAGLE3,
    KIMI_EAGLE3_MLA,
    KIMI_K2,
    KIMI_K25,
    QWEN3_8B,
    QWEN3_8B_DFLASH,
    QWEN3_8B_EAGLE3,
    QWEN3_235B,
    Config,
    write,
    write_index,
    write_safetensors,
)

LAYER = QWEN3_8B_EAGLE3["transformer_layer_config"]
BLOCK = QWEN3_8B_EAGLE3["speculators_config"]
LLAMA = QWEN3_8B | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MTP = "the target's own"


class Case(NamedTuple):
    """A target, a drafter (None, or `MTP`), the expected message, the settings, and the GPUs."""

    target: Config
    drafter: Config | str | None
    message: str = ""
    settings: dict[str, Any] | None = None
    gpus: str | None = None


def checked(folder: Path, case: Case, *, engine: str = "vllm") -> list[Advice]:
    model = read_target(write(folder / "Qwen3-8B-target", case.target))
    draft: Drafter | None = None
    if case.drafter == MTP:
        draft = mtp_drafter(model)
    elif isinstance(case.drafter, dict):
        draft = read_drafter(write(folder / "drafter", case.drafter))
    settings = {
        name: Setting(value, "command line") for name, value in ({"engine": engine} | (case.settings or {})).items()
    }
    return fit.check(model, draft, settings, hardware.parse(case.gpus) if case.gpus else None)


EIGHT = {"tensor_parallel_size": 8}
RECIPE = EIGHT | {"decode_context_parallel_size": 4, "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.9}

# Pairs and settings that go together, with no more than notes to say of them.
FITTING: dict[str, Case] = {
    "a target alone": Case(QWEN3_8B, None),
    "speculators eagle3": Case(
        QWEN3_8B, QWEN3_8B_EAGLE3, settings={"draft_tokens": 3, "strict": "schema"}, gpus="H100"
    ),
    "a block drafter": Case(QWEN3_8B, QWEN3_8B_DFLASH, settings={"draft_tokens": 15}, gpus="H100"),
    "kimi on eight 96 GB": Case(
        KIMI_K25,
        KIMI_EAGLE3_MLA,
        settings=RECIPE | {"draft_tokens": 3, "max_batch": 128, "attention_backend": "CUSTOM"},
        gpus="8x RTX PRO 6000",
    ),
    "kimi with a llama drafter": Case(KIMI_K25, KIMI_EAGLE3, settings=EIGHT, gpus="8x H200"),
    "deepseek with its mtp": Case(DEEPSEEK_V32, MTP, settings=EIGHT | {"draft_tokens": 1}, gpus="8x H200"),
    "ngram that matches enough": Case(
        QWEN3_8B, None, settings={"method": "ngram", "draft_tokens": 3, "prompt_lookup_min": 8}
    ),
    "a chain under a grammar": Case(QWEN3_8B, QWEN3_8B_EAGLE3, settings={"draft_top_k": 1, "strict": "schema"}),
    "a tree without one": Case(QWEN3_8B, QWEN3_8B_EAGLE3, settings={"draft_top_k": 4, "strict": "off"}),
    "a gate for one sequence": Case(
        QWEN3_8B, QWEN3_8B_EAGLE3, settings={"speculate_below_context": 7000, "max_batch": 1}
    ),
    "a gate for a lookup": Case(
        QWEN3_8B, None, settings={"method": "suffix", "speculate_below_context": 7000, "max_batch": 8}
    ),
    "key-value heads repeated": Case(QWEN3_235B, None, settings={"tensor_parallel_size": 16}),
    "context over repeated heads": Case(
        QWEN3_235B, None, settings=EIGHT | {"decode_context_parallel_size": 2}, gpus="8x H200"
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_fitting_plan_is_accepted(tmp_path: Path, name: str) -> None:
    advice = checked(tmp_path, FITTING[name])
    assert [each for each in advice if each.level == "warning"] == []


REFUSED: dict[str, Case] = {
    # The drafter and the target.
    "hidden size": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3 | {"target_hidden_size": 5120},
        r"reads hidden states 5120 wide .*the target's hidden_size is 4096\. Use a drafter made for this target, or",
    ),
    "hidden size of a plain one": Case(
        QWEN3_8B, KIMI_EAGLE3 | {"vocab_size": 151936}, r"hidden states 7168 wide .* hidden_size is 4096"
    ),
    "vocabulary": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3 | {"transformer_layer_config": LAYER | {"vocab_size": 152064}},
        r"its vocab_size is 152064, the target's vocab_size is 151936",
    ),
    "vocabulary of a draft model": Case(
        QWEN3_8B | {"vocab_size": 152064}, QWEN3_8B, r"its vocab_size is 151936, the target's vocab_size is 152064"
    ),
    "draft vocabulary": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3 | {"draft_vocab_size": 160000},
        r"its draft_vocab_size is 160000, the target's vocab_size is 151936",
    ),
    "mask token": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1]}},
        r"its mask_token_id is 248070, the target's vocab_size is 151936",
    ),
    "layers that enter": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [2, 18, 37]},
        r"enter layers \[2, 18, 37\], the target has 36 layers \(0 to 36 can be",
    ),
    "layers that leave": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"dflash_config": {"target_layer_ids": [1, 36]}},
        r"enter layers \[2, 37\], the target has 36 layers \(0 to 36 can be read\)",
    ),
    "number of layers": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"num_target_layers": 48},
        r"made for a target of 48 layers \(num_target_layers\), this one has 36",
    ),
    "another family": Case(
        LLAMA, QWEN3_8B_EAGLE3, r"made for Qwen/Qwen3-8B \(Qwen3ForCausalLM\), this one is LlamaForCausalLM \(llama\)"
    ),
    "the text model's on the multimodal one": Case(
        QWEN3_8B
        | {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "vision_config": {}}
        | {"text_config": QWEN3_8B},
        QWEN3_8B_EAGLE3,
        r"\(Qwen3ForCausalLM, the text model alone\), this one is Qwen3VLFor.* \(qwen3_vl, multimodal\)",
    ),
    "the text family's on the multimodal one": Case(
        KIMI_K25,
        KIMI_EAGLE3 | {"target_model_type": "kimi_k2"},
        r"is for targets of model_type kimi_k2 \(target_model_type\), this one is KimiK25.* \(kimi_k25, multimodal\)",
    ),
    "another family by its type": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"target_model_type": "qwen2_5_vl"},
        r"targets of model_type qwen2_5_vl .*this one is Qwen3ForCausalLM \(qwen3\)",
    ),
    "positions of three parts": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        r"its positions have three parts \(rope type mrope, mrope\), the target's have one \(rope type default\)",
    ),
    "a context beyond its yarn": Case(
        KIMI_K2,
        KIMI_EAGLE3 | {"max_position_embeddings": 65536},
        r"context is 131072 \(command line\) but .*drafter ends at 65536 .*yarn\): use --context 65536, or",
        settings={"context": 131072},
    ),
    "a default context beyond its yarn": Case(
        KIMI_K2,
        KIMI_EAGLE3 | {"max_position_embeddings": 65536},
        r"context is the target's 262144 but .*drafter ends at 65536",
    ),
    "a context beyond a draft model": Case(
        QWEN3_8B, QWEN3_8B | {"max_position_embeddings": 8192}, r"drafter ends at 8192"
    ),
    "a drafter that says too little": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3 | {"transformer_layer_config": {"model_type": "phi3"}},
        r"engine vllm cannot run .*drafter \(eagle3, speculators\): its config leaves out hidden_size",
    ),
    "a method that the engine has not": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH | {"architectures": ["DominoDraftModel"]},
        r"vLLM 0\.33 has no Domino; SGLang runs it as DFLASH\. Use another drafter or engine, or `--drafter none`",
    ),
    # Lengths.
    "context": Case(
        QWEN3_8B,
        None,
        r"context is 131072 \(command line\) but .*target was made for 40960 tokens \(max_position_embeddings 40960\)",
        settings={"context": 131072},
    ),
    "more than a block": Case(
        QWEN3_8B,
        QWEN3_8B_DFLASH,
        r"draft_tokens is 16 \(command line\) but .*\(dflash\) drafts at most 15 a step \(block_size 16\)",
        settings={"draft_tokens": 16},
    ),
    "no whole rounds of mtp": Case(
        DEEPSEEK_V32 | {"num_nextn_predict_layers": 2},
        MTP,
        r"draft_tokens is 3 .*2 MTP layers, which draft in whole rounds: set a multiple of 2, or less",
        settings={"draft_tokens": 3},
    ),
    # Known to go wrong.
    "ngram that matches too little": Case(
        QWEN3_8B,
        None,
        r"prompt_lookup_min is 2 \(command line\) with method ngram: .*half of all tool calls .*--prompt-lookup-min 8",
        settings={"method": "ngram", "prompt_lookup_min": 2},
    ),
    "a tree under a grammar": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3,
        r"draft_top_k is 4 .*, which makes a tree of drafts, but strict is schema .*: --draft-top-k 1, or --strict off",
        settings={"draft_top_k": 4, "strict": "schema"},
    ),
    "an argmax and probabilities": Case(
        KIMI_K25,
        KIMI_EAGLE3,
        r"local_argmax is True .*but draft_sampling is probabilistic .*--draft-sampling greedy",
        settings={"local_argmax": True, "draft_sampling": "probabilistic"},
    ),
    # Sizes.
    "more gpus than there are": Case(
        KIMI_K25,
        None,
        r"tensor_parallel_size is 8 .*, pipeline_parallel_size is 2 .*: this needs 16 GPUs and there are 8x H200",
        settings=EIGHT | {"pipeline_parallel_size": 2},
        gpus="8x H200",
    ),
    "heads": Case(
        QWEN3_8B,
        None,
        r"tensor_parallel_size is 3 .*has 32 attention heads, which it does not divide: one of \[1, 2, 4, 8, 16, 32\]",
        settings={"tensor_parallel_size": 3},
    ),
    "key-value heads": Case(
        QWEN3_8B | {"num_attention_heads": 36, "num_key_value_heads": 6},
        None,
        r"has 6 key-value heads, which it neither divides nor is a multiple of: one of \[1, 2, 3, 6, 12, 18, 36\]",
        settings={"tensor_parallel_size": 4},
    ),
    "experts": Case(
        QWEN3_235B | {"moe_intermediate_size": 1500},
        None,
        r"the experts of .*target are 1500 wide, which it does not divide: one of \[1, 2, 4\]",
        settings=EIGHT,
    ),
    "experts in blocks": Case(
        QWEN3_235B | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        None,
        r"are 1536 wide in blocks of 128 that share a scale \(fp8\), which it does not divide: one of \[1, 2, 4\]",
        settings=EIGHT,
    ),
    "the drafter's heads": Case(
        QWEN3_235B,
        QWEN3_8B_DFLASH | {"num_target_layers": 94, "num_attention_heads": 20, "num_key_value_heads": 20},
        r"tensor_parallel_size is 8 .*drafter has 20 attention heads, .*; or --draft-tensor-parallel-size 1",
        settings=EIGHT,
    ),
    "the drafter's degree": Case(
        QWEN3_8B,
        QWEN3_8B_EAGLE3,
        r"draft_tensor_parallel_size is 2 .*but tensor_parallel_size is 8: .*divided like its target: 1 or 8",
        settings=EIGHT | {"draft_tensor_parallel_size": 2},
    ),
    "stages": Case(
        QWEN3_8B,
        None,
        r"pipeline_parallel_size is 37 .*has 36 layers, and a stage needs one",
        settings={"pipeline_parallel_size": 37},
    ),
    "context degree": Case(
        KIMI_K25,
        None,
        r"decode_context_parallel_size is 3 .*but tensor_parallel_size is 8, which it must divide: one of \[1, 2, 4, 8",
        settings=EIGHT | {"decode_context_parallel_size": 3},
    ),
    "context over heads that are not repeated": Case(
        QWEN3_8B,
        None,
        r"decode_context_parallel_size is 2 .*leaves 1 of each of the 8 key-value heads \(gqa\) of .*: at most 1",
        settings=EIGHT | {"decode_context_parallel_size": 2},
    ),
    "context over heads that share": Case(
        QWEN3_8B | {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128},
        None,
        r"decode_context_parallel_size is 2 .*but 3 heads of .* share a key-value head, which it must divide: one of",
        settings={"tensor_parallel_size": 24, "decode_context_parallel_size": 2},
    ),
    # Memory.
    "weights": Case(
        KIMI_K25,
        None,
        r"does not fit on 8x H100 with tensor_parallel_size 8 and context 262144: of 79\.6 GiB on each H100, 92% are "
        r"used: weights take 71\.1, .*cache of one such sequence takes 17\.2\. What would help: --kv-cache-dtype fp8",
        settings=EIGHT,
        gpus="8x H100",
    ),
    "a cache": Case(
        KIMI_K25,
        None,
        r"does not fit .*would help: --context \d+, --kv-cache-dtype fp8, --decode-context-parallel-size 8, more or",
        settings=EIGHT | {"gpu_memory_utilization": 0.9},
        gpus="8x RTX PRO 6000",
    ),
    "on part of the gpus": Case(
        KIMI_K25,
        None,
        r"does not fit on 8x H200 with tensor_parallel_size 4 .*more of the 8 GPUs \(--tensor-parallel-size\)",
        settings={"tensor_parallel_size": 4},
        gpus="8x H200",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match=REFUSED[name].message) as refusal:
        checked(tmp_path, REFUSED[name])
    assert "\n" not in refusal.value.message


def test_how_the_embedded_engine_divides_a_model(tmp_path: Path) -> None:
    assert checked(tmp_path, Case(QWEN3_8B, QWEN3_8B_EAGLE3, gpus="8x H100"), engine="embedded")[:1] == []
    assert not checked(tmp_path, Case(QWEN3_8B, None, settings={"tensor_parallel_size": 4}), engine="embedded")
    for sizes, reason in (
        ({"tensor_parallel_size": 3}, "tensor_parallel_size is 3 .*3 ranks cannot divide 32 attention heads"),
        ({"pipeline_parallel_size": 2}, "has tensor_parallel_size and decode_context_parallel_size only"),
        ({"data_parallel_size": 2}, "has tensor_parallel_size and decode_context_parallel_size only"),
        ({"decode_context_parallel_size": 2}, "needs a multiple of them, and there are 1"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, r"needs latent attention \(MLA\)"),
    ):
        with pytest.raises(PlanError, match=rf"{reason}.*: --engine vllm"):
            checked(tmp_path, Case(QWEN3_8B, None, settings=sizes), engine="embedded")
    with pytest.raises(
        PlanError, match=r"engine embedded cannot run .*drafts with EAGLE-3, P-EAGLE, MTP layers inside"
    ):
        checked(tmp_path, Case(QWEN3_8B, QWEN3_8B_DFLASH), engine="embedded")


def test_the_methods_of_a_running_server_are_not_checked(tmp_path: Path) -> None:
    domino = QWEN3_8B_DFLASH | {"architectures": ["DominoDraftModel"]}
    assert checked(tmp_path, Case(QWEN3_8B, domino), engine="http://127.0.0.1:8000") == []


def test_a_missing_vocabulary_map_is_refused(tmp_path: Path) -> None:
    case = Case(QWEN3_8B, QWEN3_8B_EAGLE3)
    write(tmp_path / "drafter", QWEN3_8B_EAGLE3)
    write_safetensors(tmp_path / "drafter" / "model.safetensors", "fc.weight")
    with pytest.raises(
        PlanError, match=r"draft_vocab_size is 32000 of the target's 151936 but its weights hold no d2t"
    ):
        checked(tmp_path, case)
    write_safetensors(tmp_path / "drafter" / "model.safetensors", "fc.weight", "d2t")
    assert checked(tmp_path, case) == []


@pytest.mark.parametrize(
    "folder",
    ["Kimi-K2.5-Thinking-Eagle3", "models--nvidia--Kimi-K2.5-Thinking-Eagle3/snapshots/13dab2a34d65"],
)
def test_a_drafter_whose_name_suggests_another_target_is_refused(tmp_path: Path, folder: str) -> None:
    """README of the image vllm-kimi25-eagle: nvidia's K2.5 drafter works with the text model K2-Thinking only."""
    draft = read_drafter(write(tmp_path / folder, KIMI_EAGLE3))
    settings = {"engine": Setting("vllm", "command line")}
    text = read_target(write(tmp_path / "Kimi-K2-Thinking-NVFP4", KIMI_K2))
    assert fit.check(text, draft, settings) == []
    multimodal = read_target(write(tmp_path / "Kimi-K2.5", KIMI_K25))
    with pytest.raises(PlanError, match=r"works only with nvidia/Kimi-K2-Thinking-NVFP4.*\(kimi_k25, multimodal\)"):
        fit.check(multimodal, draft, settings)


ADVISED: dict[str, tuple[Case, str, str]] = {
    "trained on less": (
        Case(QWEN3_8B, QWEN3_8B_DFLASH | {"max_position_embeddings": 2048}),
        "speculate_below_context",
        r"was trained on 2048 tokens, the context is 40960: beyond, fewer drafts are accepted",
    ),
    "mtp again": (
        Case(DEEPSEEK_V32, MTP, settings={"draft_tokens": 3}),
        "draft_tokens",
        r"3 tokens a step from 1 MTP layer: the same layers run again",
    ),
    "ngram that may match too little": (
        Case(QWEN3_8B, None, settings={"method": "ngram"}),
        "method",
        r"prompt_lookup_min is not set: tool calls were reported clean at 8",
    ),
    "ngram beside a state": (
        Case(QWEN3_8B | {"full_attention_interval": 4}, None, settings={"method": "ngram", "prompt_lookup_min": 8}),
        "method",
        r"27 layers of .*target are linear attention",
    ),
    "a gate on ranks that draft alike": (
        Case(
            KIMI_K25,
            KIMI_EAGLE3,
            settings={"speculate_below_context": 7000, "tensor_parallel_size": 8, "data_parallel_size": 2},
        ),
        "speculate_below_context",
        r"7000 \(command line\) and data_parallel_size is 2 \(command line\): ranks that share experts all draft",
    ),
    "stages that hand nothing on": (
        Case(KIMI_K25, KIMI_EAGLE3, settings={"pipeline_parallel_size": 2}),
        "pipeline_parallel_size",
        r"vLLM 0\.33 passes between stages for some models only, and not for DeepseekV3ForCausalLM",
    ),
    "gpus left over": (
        Case(QWEN3_8B, None, settings={"tensor_parallel_size": 2}, gpus="8x H100"),
        "gpus",
        r"2 of 8x H100 are used",
    ),
    "tight": (
        Case(QWEN3_8B, None, settings={"context": 32768, "gpu_memory_utilization": 0.95}, gpus="L4"),
        "context",
        r"context 32768 is tight on 1x L4: of 22\.5 GiB on each L4, 95% are used: .*--context \d+",
    ),
    "a full batch": (
        Case(QWEN3_8B, None, settings={"max_batch": 256}, gpus="H100"),
        "max_batch",
        r"room for [\d,]+ tokens: \d+ of 256 sequences at the full context of 40,960, or all at [\d,]+ each",
    ),
    "a cache that is not known": (
        Case(QWEN3_8B | {"compress_ratios": [4]}, None, gpus="H100"),
        "context",
        r"only weights are counted: the KV cache layout of Qwen3ForCausalLM is not known here",
    ),
    "arithmetic": (
        Case(
            KIMI_K2 | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
            None,
            settings=EIGHT,
            gpus="8x H200",
        ),
        "quantization",
        r"H200 \(SM90\) does not calculate in nvfp4, which needs SM100",
    ),
}


@pytest.mark.parametrize("name", ADVISED)
def test_possible_disappointments_are_advice(tmp_path: Path, name: str) -> None:
    case, setting, message = ADVISED[name]
    messages = [each.message for each in checked(tmp_path, case) if each.setting == setting]
    assert len(messages) == 1
    assert re.search(message, messages[0])


def test_a_drafters_trained_length_sets_a_limit_and_gives_a_warning(tmp_path: Path) -> None:
    """But a measured gate notices by itself where drafts get worse; only a limit of the user removes the message."""
    short = QWEN3_8B_EAGLE3 | {"transformer_layer_config": LAYER | {"max_position_embeddings": 2048}}

    def advised(**settings: Any) -> list[str]:
        advice = checked(tmp_path, Case(QWEN3_8B, short, settings=settings), engine="embedded")
        return [f"{each.level}: {each.message}" for each in advice if each.setting == "speculate_below_context"]

    text = "was trained on 2048 tokens, the context is 40960: beyond, fewer drafts are accepted"
    draft = tmp_path / "drafter"
    other = "--speculate-below-context sets another limit"
    assert advised(gate="measured") == [f"note: {draft} {text}, which the gate measures; {other}"]
    assert advised(gate="off") == [f"warning: {draft} {text}, so the limit is 2048; {other}"]
    assert advised(gate="measured", speculate_below_context=2048) == []
    assert advised(gate="off", speculate_below_context=2048) == []
    drafter = read_drafter(write(draft, short))
    for settings, limit in (
        ({"draft_tokens": 3}, 2048),
        ({"draft_tokens": 3, "gate": "measured"}, None),
        ({"draft_tokens": 3, "context": 2048}, None),
        ({"draft_tokens": 0}, None),
    ):
        given = {name: Setting(each, "command line") for name, each in settings.items()}
        assert (
            pairing.trained_limit(Candidate(read_target(write(tmp_path / "t", QWEN3_8B)), drafter, given, None))
            == limit
        )


def test_a_drafter_for_another_target_of_the_same_shape_gets_a_warning(tmp_path: Path) -> None:
    draft = read_drafter(write(tmp_path / "drafter", QWEN3_8B_EAGLE3))
    settings = {"engine": Setting("vllm", "default")}

    def advised(folder: str) -> list[Advice]:
        return fit.check(read_target(write(tmp_path / folder, QWEN3_8B)), draft, settings)

    assert advised("Qwen3-8B") == advised("Qwen3-8B-FP8") == advised("models--Qwen--Qwen3-8B/snapshots/0123") == []
    (warning,) = advised("Qwen3-8-Coder")
    assert (warning.level, warning.setting) == ("warning", "drafter")
    assert "was made for Qwen/Qwen3-8B" in warning.message


def test_the_longest_context_is_one_that_both_support(tmp_path: Path) -> None:
    def longest(config: Config, draft: Config | None) -> int:
        model: Target = read_target(write(tmp_path / "target", config))
        drafter = None if draft is None else read_drafter(write(tmp_path / "drafter", draft))
        return pairing.longest_context(model, drafter)[0]

    assert longest(KIMI_K2, None) == 262144
    assert longest(KIMI_K2, KIMI_EAGLE3) == 262144
    assert longest(KIMI_K2, KIMI_EAGLE3_MLA) == 262144  # says nothing of it
    assert longest(KIMI_K2, KIMI_EAGLE3 | {"max_position_embeddings": 65536}) == 65536  # yarn
    assert longest(QWEN3_8B, QWEN3_8B_DFLASH | {"max_position_embeddings": 2048}) == 40960  # a table made longer
    assert longest(QWEN3_8B, QWEN3_8B | {"max_position_embeddings": 2048}) == 2048  # a model of its own


def test_weights_of_another_model_get_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-8B-target"
    folder.mkdir()
    for size, warning in (
        (1, "by the index of .* the weights take 0.0 GiB"),
        (2**59, "the index of"),
        (16_400_000_000, None),
    ):
        write_index(folder, {"a.safetensors": ["t"]}, total_size=size)
        case = Case(QWEN3_8B, None)
        messages = [each.message for each in checked(tmp_path, case) if each.setting == "target"]
        assert len(messages) == (warning is not None)
        assert warning is None or re.search(rf"{warning}.* by config.json 15.3 GiB: one of them", messages[0])
