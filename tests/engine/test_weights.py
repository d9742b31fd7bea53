"""An incomplete or unsupported checkpoint is refused with one `CheckpointError` before anything loads."""

from __future__ import annotations

import json
import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.checkpoints.positions import Yarn
from dovetail.engine.models.registry import build_model
from dovetail.engine.weights import inspect_target, load_tensors
from dovetail.errors import CheckpointError
from tests.engine.checkpoints import LLAMA3, QWEN3, YARN, write_llama, write_target

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


def header(change: Callable[[dict[str, Any]], object], file: str = "model.safetensors") -> Change:
    """Rewrite the header of a safetensors file and leave its data as they are."""

    def apply(path: Path) -> None:
        content = (path / file).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        declared = json.loads(content[8:end])
        change(declared)
        encoded = json.dumps(declared).encode()
        (path / file).write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[end:])

    return apply


def shards(change: Change) -> Change:
    return lambda path: (shard(path), change(path))


def rewrite_index(change: Callable[[dict[str, str]], object]) -> Change:
    def apply(path: Path) -> None:
        file = path / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        change(index["weight_map"])
        file.write_text(json.dumps(index))

    return shards(apply)


def repeat(path: Path) -> None:
    """The second shard holds a tensor of the first."""
    name, tensor = next(iter(load_file(path / "a.safetensors").items()))
    save_file(load_file(path / "b.safetensors") | {name: tensor}, path / "b.safetensors")


NORM = "model.norm.weight"
LAYER = "model.layers.1.mlp.experts.3.up_proj.weight"
BAD_TARGETS: dict[str, tuple[Change, str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "config is not JSON": (lambda p: (p / "config.json").write_text("{"), "cannot be read as JSON"),
    "config is a list": (lambda p: (p / "config.json").write_text("[]"), "must hold a JSON object"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "missing shard": (
        lambda p: (shard(p), (p / "b.safetensors").unlink()),
        "1 of the 2 files .*b.safetensors is mis",
    ),
    "cut short": (truncate, "cut short"),
    "a shard cut short": (
        shards(lambda p: (p / "b.safetensors").write_bytes((p / "b.safetensors").read_bytes()[:-4])),
        "b.safetensors is cut short",
    ),
    "longer than its header declares": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes() + b"...."),
        "longer than its header declares",
    ),
    "a shape larger than its bytes": (
        header(lambda h: h[NORM].update(shape=[49])),
        f"inconsistent header: {NORM}, F32 \\[49\\]",
    ),
    "two tensors in the same bytes": (
        header(lambda h: h[NORM].update(data_offsets=[0, 192])),
        "inconsistent header",
    ),
    "a type of another size": (
        header(lambda h: h[NORM].update(dtype="BF16")),
        f"inconsistent .*{NORM}, BF16",
    ),
    "offsets beyond the file": (
        header(lambda h: h[NORM].update(data_offsets=[10**15, 10**15 + 192])),
        "inconsistent header",
    ),
    "offsets that run backwards": (header(lambda h: h[NORM].update(data_offsets=[192, 0])), "inconsistent header"),
    "a shape of text": (header(lambda h: h[NORM].update(shape=["48"])), "unreadable safetensors header"),
    "a tensor without offsets": (header(lambda h: h[NORM].pop("data_offsets")), "unreadable safetensors header"),
    "a shard's header": (
        shards(header(lambda h: next(iter(h.values())).update(data_offsets=None), "b.safetensors")),
        "b.safetensors has an unreadable safetensors header",
    ),
    "a tensor in two shards": (shards(repeat), "is in two files, a.safetensors and b.safetensors"),
    "a tensor that its shard lacks": (
        rewrite_index(lambda m: m.update({NORM: "a.safetensors" if m[NORM][0] == "b" else "b.safetensors"})),
        f"index.json places tensor {NORM} in [ab].safetensors, which does not hold it",
    ),
    "a tensor that no shard has": (
        rewrite_index(lambda m: m.update(x="a.safetensors")),
        "tensor x in a.safetensors",
    ),
    "a shard elsewhere": (
        rewrite_index(lambda m: m.update(x="../a.safetensors")),
        "which is outside its folder",
    ),
    "not safetensors": (lambda p: (p / "model.safetensors").write_bytes(b"hello"), "not a safetensors file"),
    "garbled header": (
        lambda p: (p / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b"[1, 2, 3]"),
        "unreadable safetensors header",
    ),
    "unknown architecture": (config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel.*not supported.*Deepseek"),
    "no architecture": (config(architectures=None), "architectures is missing"),
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
    "too many chosen": (
        config(n_group=4, topk_group=1, num_experts_per_tok=3),
        "per_tok 3 exceeds the 2 experts",
    ),
    "no shared experts": (config(n_shared_experts=0), "n_shared_experts"),
    "softmax router": (config(scoring_func="softmax"), "scoring_func is 'softmax'"),
    "rope": (config(rope_scaling={"type": "dynamic", "factor": 2}), "rope type 'dynamic'"),
    "yarn without its length": (config(rope_scaling={"type": "yarn", "factor": 2}), "original_max_position"),
    "a field's type": (config(hidden_size="wide"), "hidden_size"),
    "a field missing": (config(kv_lora_rank=None), "kv_lora_rank"),
    "architectures of numbers": (config(architectures=[1]), "architectures is missing"),
    "architectures as a string": (config(architectures="DeepseekV3ForCausalLM"), "architectures is missing"),
    "rope as a string": (config(rope_scaling="yarn"), "rope_scaling must be an object"),
    "no end of turn": (config(eos_token_id=None), "eos_token_id must be one or more token ids"),
    "an end of turn that is no id": (config(eos_token_id=[1, "2"]), "eos_token_id must be"),
    "an end of turn outside": (config(eos_token_id=99999), "eos_token_id must be .* below the vocab_size of 97"),
    "an index of numbers": (
        lambda p: (shard(p), (p / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}')),
        "is not an index of weights",
    ),
    "layers beyond reason": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "experts beyond reason": (config(n_routed_experts=10**9), "n_routed_experts"),
    "a negative size": (config(num_hidden_layers=-1), "num_hidden_layers"),
}


LLAMA3_UPSIDE_DOWN = LLAMA3 | {"high_freq_factor": 1.0}
BAD_LLAMAS: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "biases in the MLP": ({"mlp_bias": True}, "mlp_bias is True"),
    "part of a head rotated": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "the same, in its block": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5",
    ),
    "a window": ({"sliding_window": 64}, "sliding_window is 64"),
    "a window in Qwen3": (QWEN3 | {"use_sliding_window": True}, "use_sliding_window is True"),
    "layers with windows": (
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "layer_types has .*sliding_attention",
    ),
    "quantized": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is set"),
    "heads": ({"num_key_value_heads": 4}, "num_key_value_heads is 4, which does not divide the 6"),
    "an odd head": ({"head_dim": 7}, "head_dim is 7, which must be even"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
    "linear without a factor": ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    "llama3 without a ramp": ({"rope_scaling": LLAMA3_UPSIDE_DOWN}, "low_freq_factor and high_freq_factor must differ"),
    "the wrong model type": ({"model_type": "qwen3"}, "LlamaForCausalLM .model_type 'qwen3'. is not supported"),
    "two architectures": ({"architectures": ["LlamaForCausalLM", "X"]}, "LlamaForCausalLM, X .*not supported"),
}


@pytest.mark.parametrize("case", BAD_LLAMAS)
def test_bad_llama(case: str, tmp_path: Path) -> None:
    changes, message = BAD_LLAMAS[case]
    path = write_llama(tmp_path / "target")
    config(**changes)(path)
    with pytest.raises(CheckpointError) as caught:
        inspect_target(path)
    assert re.search(message, caught.value.message) and str(path) in caught.value.message


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_bad_target(case: str, tmp_path: Path) -> None:
    change, message = BAD_TARGETS[case]
    path = write_target(tmp_path / "target")
    change(path)
    with pytest.raises(CheckpointError) as caught:
        inspect_target(path)
    assert re.search(message, caught.value.message) and str(path) in caught.value.message


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        inspect_target(tmp_path / "nowhere")


def test_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    whole = inspect_target(write_target(tmp_path / "whole"))
    path = write_target(tmp_path / "shards")
    shard(path)
    parts = inspect_target(path)
    names = list(whole.config.expected_tensors())
    loaded, expected = load_tensors(parts.tensors, names), load_tensors(whole.tensors, names)
    assert all(torch.equal(loaded[name], expected[name]) for name in names)


def test_a_checkpoint_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    """Each tensor is read when it is needed and freed when it is packed; progress is reported in bytes."""
    path = write_llama(tmp_path, num_hidden_layers=12)
    shard(path)
    checkpoint = inspect_target(path)
    sizes = {name: 4 * math.prod(shape) for name, shape in checkpoint.config.expected_tensors().items()}
    alive: dict[int, int] = {}
    most = 0
    reported: list[tuple[int, int]] = []

    class Counted(Mapping[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            nonlocal most
            tensor = weights[name]
            storage = tensor.untyped_storage()
            alive[id(storage)] = storage.nbytes()
            weakref.finalize(storage, alive.pop, id(storage))
            most = max(most, sum(alive.values()))
            return tensor

        def __iter__(self) -> Iterator[str]:
            return iter(weights)

        def __len__(self) -> int:
            return len(weights)

    weights = load_tensors(checkpoint.tensors, sizes, lambda done, total: reported.append((done, total)))
    model = build_model(checkpoint.config, Counted(), rows=16, context=16, dtype=torch.bfloat16)
    assert model.vocab_size == 97
    largest_layer = sum(size for name, size in sizes.items() if name.startswith("model.layers.0."))
    assert most <= largest_layer < sum(sizes.values()) / 4
    assert [done for done, _ in reported] == sorted({done for done, _ in reported})
    assert reported[-1] == (sum(sizes.values()), sum(sizes.values()))


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path: Path) -> None:
    checkpoint = inspect_target(write_llama(tmp_path))
    weights = load_tensors(checkpoint.tensors, checkpoint.config.expected_tensors())
    last = max(checkpoint.tensors, key=lambda name: checkpoint.tensors[name].start)
    truncate(tmp_path)
    with pytest.raises(CheckpointError, match=f"cut short: {last} is incomplete"):
        weights[last]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        weights[last]


def test_eos_ids_and_rope(tmp_path: Path) -> None:
    path = write_target(tmp_path / "target", eos_token_id=[1, 5], rope_scaling=YARN, rope_theta=50000.0)
    checkpoint = inspect_target(path)
    assert checkpoint.target.eos_ids == (1, 5)
    assert checkpoint.config.rope.theta == 50000.0 and isinstance(checkpoint.config.rope.scaling, Yarn)
    # transformers 5 writes one block; generation_config.json decides which ids end a turn.
    config(rope_theta=None, rope_scaling=None, rope_parameters=YARN | {"rope_theta": 50000.0})(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    again = inspect_target(path)
    assert again.config == checkpoint.config and again.target.eos_ids == (7,)
