"""A checkpoint that is not whole, or a pair that does not fit, is one `CheckpointError` before anything loads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.engine.checkpoint import inspect_drafter, inspect_target, load_tensors
from dovetail.engine.core import LLMCore
from dovetail.errors import CheckpointError
from tests.engine.checkpoints import DRAFTER, YARN, ByteTokenizer, write_drafter, write_target

Change = Callable[[Path], object]


def config(**changes: Any) -> Change:
    def change(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(path: Path) -> None:
        file = path / "model.safetensors"
        weights = load_file(file)
        change(weights)
        save_file(weights, file)

    return apply


def shard(path: Path) -> None:
    """Split model.safetensors in two, with an index."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, path / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


LAYER = "model.layers.1.mlp.experts.3.up_proj.weight"
BAD_TARGETS: dict[str, tuple[Change, str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "config is not JSON": (lambda p: (p / "config.json").write_text("{"), "cannot be read as JSON"),
    "config is a list": (lambda p: (p / "config.json").write_text("[]"), "must hold a JSON object"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "missing shard": (lambda p: (shard(p), (p / "b.safetensors").unlink()), "lacks 1 of 2 shards.*b.safetensors"),
    "cut short": (truncate, "cut short"),
    "not safetensors": (lambda p: (p / "model.safetensors").write_bytes(b"hello"), "not a safetensors file"),
    "garbled header": (
        lambda p: (p / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b"[1, 2, 3]"),
        "unreadable safetensors header",
    ),
    "unknown architecture": (config(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM.*not supported.*Deepseek"),
    "no architecture": (config(architectures=None), "unnamed.*not supported"),
    "missing tensor": (tensors(lambda w: w.pop(LAYER)), f"{LAYER} is missing .*\\[24, 48\\]"),
    "wrong shape": (
        tensors(lambda w: w.update({LAYER: torch.zeros(24, 47)})),
        f"{LAYER} has shape \\[24, 47\\], expected \\[24, 48\\]",
    ),
    "integer weights": (
        tensors(lambda w: w.update({LAYER: torch.zeros(24, 48, dtype=torch.int8)})),
        f"{LAYER} is stored as I8",
    ),
    "quantized": (config(quantization_config={"quant_method": "fp8"}), "quantization_config is set"),
    "groups": (config(n_group=3), "n_group 3 and topk_group 1 do not fit 8 experts"),
    "topk_group": (config(n_group=2, topk_group=3), "n_group 2 and topk_group 3 do not fit"),
    "no groups": (config(n_group=0), "n_group"),
    "single-expert groups": (config(n_group=8), "fewer than 2 of 8 experts"),
    "too many chosen": (config(n_group=4, topk_group=1, num_experts_per_tok=3), "num_experts_per_tok 3 exceeds.*: 2"),
    "no shared experts": (config(n_shared_experts=0), "n_shared_experts"),
    "softmax router": (config(scoring_func="softmax"), "scoring_func is 'softmax'"),
    "rope": (config(rope_scaling={"type": "linear", "factor": 2}), "rope type 'linear'"),
    "yarn without its length": (config(rope_scaling={"type": "yarn", "factor": 2}), "original_max_position"),
    "a field's type": (config(hidden_size="wide"), "hidden_size"),
    "a field missing": (config(kv_lora_rank=None), "kv_lora_rank"),
    "architectures of numbers": (config(architectures=[1]), "architecture 1 "),
    "architectures as a string": (config(architectures="DeepseekV3ForCausalLM"), "architectures must be a list"),
    "rope as a string": (config(rope_scaling="yarn"), "rope_scaling must be an object"),
    "no end of turn": (config(eos_token_id=None), "eos_token_id must be one or more token ids"),
    "an end of turn that is no id": (config(eos_token_id=[1, "2"]), "eos_token_id must be"),
    "an end of turn outside": (config(eos_token_id=99999), "eos_token_id must be .* below the vocab_size of 97"),
    "an index of numbers": (
        lambda p: (shard(p), (p / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')),
        "no weight_map from tensor names",
    ),
    "layers beyond reason": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "experts beyond reason": (config(n_routed_experts=10**9), "n_routed_experts"),
    "a negative size": (config(num_hidden_layers=-1), "num_hidden_layers"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_bad_target(case: str, tmp_path: Path) -> None:
    change, message = BAD_TARGETS[case]
    path = write_target(tmp_path / "target")
    change(path)
    with pytest.raises(CheckpointError) as caught:
        inspect_target(path)
    assert re.search(message, caught.value.message) and str(path) in caught.value.message


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        inspect_target(tmp_path / "nowhere")


def layer(**changes: Any) -> Change:
    return config(transformer_layer_config=DRAFTER["transformer_layer_config"] | changes)


BAD_DRAFTERS: dict[str, tuple[Change, str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "another kind": (config(speculators_model_type="dflash"), "'dflash'.*'eagle3'"),
    "no layer": (config(transformer_layer_config=None), "transformer_layer_config"),
    "proposals as a string": (config(speculators_config={"proposal_methods": "x"}), "proposal_methods must be a list"),
    "a block that is a list": (config(speculators_config=[1]), "speculators_config must be an object"),
    "another layer": (layer(model_type="qwen3"), "model_type is 'qwen3'"),
    "target hidden size": (config(target_hidden_size=64), "target_hidden_size is 64.*hidden_size is 48"),
    "vocabulary": (layer(vocab_size=128), "vocab_size is 128.*target's is 97"),
    "draft vocabulary": (config(draft_vocab_size=98), "draft_vocab_size is 98.*vocab_size is 97"),
    "aux layers": (config(eagle_aux_hidden_state_layer_ids=[1, 29]), r"\[1, 29\].*target has 3 layers"),
    "no aux layers": (config(eagle_aux_hidden_state_layer_ids=None), "aux_layers|aux_hidden_state"),
    "heads": (layer(num_key_value_heads=4), "6 heads cannot share 4"),
    "missing tensor": (tensors(lambda w: w.pop("fc.weight")), r"fc.weight is missing .*\[48, 144\]"),
    "wrong shape": (
        tensors(lambda w: w.update({"fc.weight": torch.zeros(48, 96)})),
        r"\[48, 96\], expected \[48, 144\]",
    ),
    "no vocabulary map": (
        lambda p: (
            config(draft_vocab_size=40)(p),
            tensors(lambda w: w.update({"lm_head.weight": torch.zeros(40, 48)}))(p),
        ),
        "d2t is missing",
    ),
}


@pytest.mark.parametrize("case", BAD_DRAFTERS)
def test_bad_drafter(case: str, tmp_path: Path) -> None:
    change, message = BAD_DRAFTERS[case]
    target = inspect_target(write_target(tmp_path / "target"))
    path = write_drafter(tmp_path / "drafter")
    change(path)
    with pytest.raises(CheckpointError) as caught:
        inspect_drafter(path, target)
    assert re.search(message, caught.value.message) and str(path) in caught.value.message


def test_narrow_drafter_needs_its_own_embeddings(tmp_path: Path) -> None:
    target = inspect_target(write_target(tmp_path / "target"))
    narrow = DRAFTER["transformer_layer_config"] | {"hidden_size": 32}
    path = write_drafter(tmp_path / "drafter", transformer_layer_config=narrow)
    with pytest.raises(CheckpointError, match="hidden_size is 32 and the target's is 48"):
        inspect_drafter(path, target)
    tensors(lambda w: w.update({"embed_tokens.weight": torch.zeros(97, 32)}))(path)
    assert inspect_drafter(path, target).config.hidden_size == 32


def test_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    whole = inspect_target(write_target(tmp_path / "whole"))
    path = write_target(tmp_path / "shards")
    shard(path)
    parts = inspect_target(path)
    names = list(whole.config.expected_tensors())
    loaded, expected = load_tensors(parts.tensors, names), load_tensors(whole.tensors, names)
    assert all(torch.equal(loaded[name], expected[name]) for name in names)


def test_what_a_config_says(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target", eos_token_id=[1, 5], rope_scaling=YARN, rope_theta=50000.0)
    found = inspect_target(path)
    assert found.eos_ids == (1, 5)
    assert found.config.rope.theta == 50000.0 and found.config.rope.yarn is not None
    # transformers 5 writes one block; generation_config.json has the last word on what ends a turn.
    config(rope_theta=None, rope_scaling=None, rope_parameters=YARN | {"rope_theta": 50000.0})(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    again = inspect_target(path)
    assert again.config == found.config and again.eos_ids == (7,)
    assert inspect_drafter(write_drafter(tmp_path / "drafter"), found).config.speculative_tokens == 3


def test_vocabulary_map_outside_the_vocabulary(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    path = write_drafter(tmp_path / "drafter", draft_vocab_size=41)
    tensors(lambda w: w["d2t"].add_(60))(path)
    with pytest.raises(CheckpointError, match="d2t points outside the target's vocabulary of 97"):
        LLMCore(target, path, ByteTokenizer(), draft_tokens=2, threads=1)
