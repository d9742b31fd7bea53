"""The plan accepts and refuses for the embedded engine exactly what that engine loads and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from dovetail.checkpoints.drafter import Drafter, mtp_drafter, read_drafter
from dovetail.checkpoints.target import read_target
from dovetail.engine.compute import BY_PROCESSOR
from dovetail.engine.config import mtp_config, target_config
from dovetail.engine.drafting.load import inspect_drafter
from dovetail.engine.settings import INSIDE, AttentionBackend, CacheDType, DraftSampling, DType, Quantization
from dovetail.engine.weights import inspect_target
from dovetail.errors import CheckpointError, PlanError
from dovetail.plan import embedded, resolve
from dovetail.plan.candidate import Candidate
from dovetail.plan.layers import Setting
from dovetail.plan.options import BY_NAME, GATE
from tests.checkpoints.configs import write
from tests.engine.checkpoints import (
    DRAFTER,
    LLAMA,
    MLA_DRAFTER,
    PLAIN_DRAFTER,
    write_drafter,
    write_llama,
    write_mtp_target,
    write_qwen3,
    write_target,
)
from tests.plan.samples import SAMPLES

LAYER = DRAFTER["transformer_layer_config"]


def test_values_are_those_of_the_engine() -> None:
    assert embedded.VALUES["dtype"] == get_args(DType)
    assert embedded.VALUES["attention_backend"] == get_args(AttentionBackend)
    assert embedded.VALUES["quantization"] == get_args(Quantization)
    assert set(BY_NAME["draft_sampling"].choices or ()) == {*get_args(DraftSampling), "unset"}
    assert set(embedded.VALUES["kv_cache_dtype"]) <= set(get_args(CacheDType))
    assert all(BY_NAME[name].engine_names.get("embedded") for name in embedded.VALUES)


def why_not(model: Path, drafts: Drafter | None, **options: Any) -> str | None:
    settings = {name: Setting(value, "command line") for name, value in options.items()}
    candidate = Candidate(read_target(str(model)), drafts, settings, None)
    return embedded.why_not(candidate)


@pytest.mark.parametrize("made", [write_target, write_llama, write_qwen3], ids=lambda made: made.__name__)
def test_a_target_that_it_loads_can_be_planned_for(tmp_path: Path, made: Any) -> None:
    model = made(tmp_path)
    inspect_target(model)
    assert why_not(model, None) is None
    for options in ({"method": "suffix"}, {"quantization": "int8", "kv_cache_dtype": "bfloat16"}):
        assert why_not(model, None, **options) is None


@pytest.mark.parametrize("kind", ["fp8", "fp8_ds_mla"])
def test_an_fp8_cache_is_one_of_latents(tmp_path: Path, kind: str) -> None:
    """The plan refuses what the engine refuses."""
    latents, heads = write_target(tmp_path / "latents"), write_llama(tmp_path / "heads")
    odd = write_target(tmp_path / "odd", kv_lora_rank=130)
    assert why_not(latents, None, kv_cache_dtype=kind) is None
    assert "has none (its attention is not MLA)" in (why_not(heads, None, kv_cache_dtype=kind) or "")
    small = read_drafter(str(heads))
    assert f"draft_kv_cache_dtype is {kind} (command line), which stores latents, and" in (
        why_not(latents, small, draft_kv_cache_dtype=kind) or ""
    )
    assert why_not(latents, small, kv_cache_dtype=kind) is None  # the drafter's cache is as auto
    reason = why_not(odd, None, kv_cache_dtype=kind)
    assert reason is None if kind == "fp8" else "kv_lora_rank of 130 and a qk_rope_head_dim of 8" in (reason or "")


def test_a_cache_without_its_scales_gets_a_warning() -> None:
    """Of the demo pair."""

    def warned(**options: Any) -> list[str]:
        warnings = resolve(None, {"engine": "embedded"} | options).advice_of("warning")
        return [each.message for each in warnings if each.setting == "kv_cache_dtype"]

    assert not warned() and not warned(kv_cache_dtype="fp8_ds_mla")
    (message,) = warned(kv_cache_dtype="fp8")
    assert "has no scales for it (k_scale), so 1 is used" in message


DRAFTERS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3, plain": {"base": PLAIN_DRAFTER},
    "eagle3, mla": {"base": MLA_DRAFTER},
    "peagle": {"speculators_model_type": "peagle", "mask_token_id": 96},
}


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_drafter_that_it_loads_can_be_planned_for(tmp_path: Path, kind: str) -> None:
    model, folder = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter", **DRAFTERS[kind])
    inspect_drafter(folder, inspect_target(model))
    assert why_not(model, read_drafter(str(folder))) is None


def test_a_draft_model_and_mtp_layers_can_be_planned_for(tmp_path: Path) -> None:
    model, small = write_mtp_target(tmp_path / "target"), write_llama(tmp_path / "small")
    inspect_drafter(small, inspect_target(model))
    assert why_not(model, read_drafter(str(small))) is None
    inspect_drafter(INSIDE, inspect_target(model))
    assert why_not(model, mtp_drafter(read_target(str(model)))) is None


REFUSED: dict[str, dict[str, Any]] = {
    "a block drafter": LAYER | {"architectures": ["DFlashDraftModel"], "block_size": 4},
    "a kind it does not know": DRAFTER | {"speculators_model_type": "dflash", "block_size": 4},
    "another vocabulary": DRAFTER | {"transformer_layer_config": LAYER | {"vocab_size": 96}},
    "other widths": DRAFTER | {"target_hidden_size": 64},
    "layers that are not there": DRAFTER | {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]},
    "layers of another kind": DRAFTER | {"transformer_layer_config": LAYER | {"model_type": "gemma"}},
    "a rope it does not know": DRAFTER
    | {"transformer_layer_config": LAYER | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}},
    "no mask token": DRAFTER | {"speculators_model_type": "peagle"},
    "a model it does not run": LLAMA | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
    "a window": LLAMA | {"sliding_window": 64},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_drafter_that_it_refuses_is_not_planned_for(tmp_path: Path, kind: str) -> None:
    model, folder = write_target(tmp_path / "target"), write(tmp_path / "drafter", REFUSED[kind])
    with pytest.raises(CheckpointError) as refusal:
        inspect_drafter(Path(folder), inspect_target(model))
    why = why_not(model, read_drafter(folder))
    assert why is not None
    assert why == refusal.value.message or "and the embedded engine drafts with" in why


def test_a_drafter_of_another_target_is_refused_as_the_engine_does(tmp_path: Path) -> None:
    model = write_target(tmp_path / "target")
    folder = write(tmp_path / "drafter", PLAIN_DRAFTER, target_model_type="kimi_k25")
    with pytest.raises(CheckpointError) as refusal:
        inspect_drafter(Path(folder), inspect_target(model))
    assert why_not(model, read_drafter(folder)) == refusal.value.message


def test_mtp_layers_of_another_architecture_are_refused_as_the_engine_does(tmp_path: Path) -> None:
    raw = LLAMA | {"num_nextn_predict_layers": 1}
    model = Path(write(tmp_path, raw))
    with pytest.raises(CheckpointError) as refusal:
        mtp_config(read_target(str(model)), target_config(read_target(str(model))))
    assert why_not(model, mtp_drafter(read_target(str(model)))) == refusal.value.message


def test_int8_and_bfloat16_take_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_target(tmp_path)
    parameters = read_target(str(model)).weights.parameters
    monkeypatch.setattr(embedded, "kernels_here", lambda: BY_PROCESSOR["avx_ne_convert"])
    for width, options in ((4, {}), (2, {"dtype": "bfloat16"}), (1, {"quantization": "int8"})):
        monkeypatch.setattr(embedded, "machine_memory", lambda width=width: parameters * width)
        assert why_not(model, None, **options) is None
        monkeypatch.setattr(embedded, "machine_memory", lambda width=width: parameters * width - 1)
        assert "parameters, which take" in (why_not(model, None, **options) or "")


def test_published_in_16_bits_a_checkpoint_stays_so_in_float32_where_a_kernel_has_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "kernels_here", lambda: BY_PROCESSOR["avx2"])
    model = write_target(tmp_path)
    parameters = read_target(str(model)).weights.parameters
    monkeypatch.setattr(embedded, "machine_memory", lambda: parameters * 2)
    assert why_not(model, None) is None


@pytest.mark.parametrize(
    ("processor", "options", "note"),
    [
        ("avx2", {"quantization": "int8"}, "no VNNI instructions, so int8 weights are multiplied in 16 bits"),
        ("sse41", {"quantization": "int8"}, "no VNNI instructions, so int8 takes up to twice as long"),
        ("portable", {"quantization": "int8"}, "no kernel for int8"),
        ("avx2", {"dtype": "bfloat16"}, "no bfloat16 instructions, so float32 is a tenth faster"),
        ("sse41", {"dtype": "bfloat16"}, "no bfloat16 instructions, so verifying drafts takes about twice as long"),
        ("avx512_vnni", {"dtype": "bfloat16", "quantization": "int8"}, None),
        ("avx2", {}, None),
    ],
)
def test_types_that_gain_nothing_on_this_processor_are_noted(
    monkeypatch: pytest.MonkeyPatch, processor: str, options: dict[str, Any], note: str | None
) -> None:
    monkeypatch.setattr(embedded, "kernels_here", lambda: BY_PROCESSOR[processor])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = resolve(None, {"engine": "embedded"} | options)
    found = [advice.message for advice in plan.advice if f"this processor ({processor})" in advice.message]
    assert (note is None and not found) or (note is not None and note in found[0])
    threads = str(plan.compute.value if plan.compute else "").rpartition(", ")[2]
    assert threads == "1 thread"


NEAR = [
    ("quantization", "INT8", "int8"),
    ("quantization", "awq", None),
    ("attention_backend", "spda", "sdpa"),
    ("kv_cache_dtype", "float16", None),
]


@pytest.mark.parametrize(("name", "word", "meant"), NEAR, ids=[word for _, word, _ in NEAR])
def test_an_unknown_value_is_answered_with_the_nearest(tmp_path: Path, name: str, word: str, meant: str | None) -> None:
    why = why_not(write_target(tmp_path), None, **{name: word})
    assert why is not None and why.startswith(f"{name} is {word} (command line) and the embedded engine has ")
    assert why.partition(" (did you mean ")[2] == ("" if meant is None else f"{meant}?)")


NOTHING: list[dict[str, Any]] = [{"drafter": None}, {"method": None}, {"draft_tokens": 0}]
IDLE = {"draft_sampling": "greedy", "draft_kv_cache_dtype": "bfloat16", "draft_attention_backend": "sdpa"}


@pytest.mark.parametrize("name", IDLE)
def test_settings_of_an_absent_drafter_get_a_warning(name: str) -> None:
    """Of the demo pair."""

    def warned(**options: Any) -> list[str]:
        warnings = resolve(None, {"engine": "embedded", name: IDLE[name]} | options).advice_of("warning")
        return [each.message for each in warnings if each.setting == name]

    prefix = f"{name} is {IDLE[name]} (command line): "
    assert warned() == []
    assert warned(method="suffix") == [prefix + "suffix drafts from earlier text, without a model, so it has no effect"]
    for nothing in NOTHING:
        assert warned(**nothing) == [prefix + "nothing drafts, so it has no effect"]


@pytest.mark.parametrize("name", GATE)
def test_settings_of_the_gate_get_a_warning_if_nothing_drafts(name: str) -> None:
    """Of the demo pair."""
    value = SAMPLES[name][0]

    def warned(**options: Any) -> list[str]:
        warnings = resolve(None, {"engine": "embedded", name: value} | options).advice_of("warning")
        return [each.message for each in warnings if each.setting == name]

    assert warned() == warned(method="suffix") == []
    for nothing in NOTHING:
        assert warned(**nothing) == [f"{name} is {value} (command line): nothing drafts, so it has no effect"]


def test_a_limit_of_drafts_needs_a_measured_gate() -> None:
    """Unless it is fewer than the drafter says: then that many are drafted."""
    less = resolve(None, {"engine": "embedded", "max_draft_tokens": 2, "gate": "off"})
    assert less.value("draft_tokens") == 2 and less.advice_of("warning") == []
    plan = resolve(None, {"engine": "embedded", "max_draft_tokens": 5, "gate": "off"})
    assert [each.message for each in plan.advice_of("warning")] == [
        "max_draft_tokens is 5 (command line): gate is off (command line), which always drafts draft_tokens, so it has "
        "no effect"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 1}, r"context is 1 \(command line\), which has no room"),
        (
            {"draft_tokens": 9},
            r"draft_tokens is 9 \(command line\), but the embedded engine drafts at most 8 .*: set --draft-tokens$",
        ),
        (
            {"max_draft_tokens": 9},
            r"max_draft_tokens is 9 \(command line\), but .* at most 8 .*: set --max-draft-tokens$",
        ),
        ({"max_batched_tokens": 3, "max_batch": 4}, r"max_batched_tokens is 3 \(command .* max_batch is 4 \(command"),
        ({"max_batched_tokens": 3}, r"max_batched_tokens is 3 \(command line\) but max_batch is 16 \(default\)"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        resolve(None, {"engine": "embedded"} | options)
    resolve(None, {"engine": "embedded", "context": 2, "max_batched_tokens": 4, "max_batch": 4})
