"""Models of random weights whose answers come to an end: target and drafter of the demo pair's architecture, smaller.

Random weights hardly ever close a string. So one number of the hidden state is the same for every token, and all layers
pass it on. The head turns it into a bias of the logits, which favours closing characters. All other weights are random.
The model knows nothing about valid calls: without a constraint it writes noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import dovetail
from dovetail.checkpoints.drafter import read_drafter
from dovetail.checkpoints.target import read_target
from dovetail.engine.config import Eagle3Config, drafter_config, target_config
from dovetail.tokens import Tokenizer

DEMO = Path(dovetail.__file__).parent / "data" / "demo"
_TARGET = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "n_routed_experts": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "max_position_embeddings": 16384,
    "torch_dtype": "float32",
}
_LAYER = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 16384}
_CONSTANT = 0  # which number of the hidden state is the same everywhere
_LOUD = 3.0  # how large it is, in units of the hidden state's whole length
_OTHERS = 1.2  # about what each of the others comes to behind the last layer
_SPREAD = 1.2  # of logits, beside the bias
#: By how much a logit is raised, by how a token begins. Of 3,000 tokens some 10 begin with a quote: raised by 5, one of
#: them is chosen at a third of the places in a string, so that strings have a few tokens and objects a few keys.
_FAVOURED = ((b'"', 5.0), (b"}", 5.0), (b"]", 5.0), (b",", 4.5), (b":", 5.0))
_CONTROL = 7.0
_SPACE = -2.0  # JSON may have any of it between two of its tokens


def write(folder: Path, control: Iterable[str], ends: Iterable[str], seed: int) -> None:
    """Write `folder`/target, whose tokenizer has the demo's tokens and `control` as its control tokens, of which `ends`
    end a turn, and `folder`/drafter."""
    target, drafter = folder / "target", folder / "drafter"
    target.mkdir(parents=True)
    tokenizer = _tokenizer(target, control)
    config = _read(DEMO / "target") | _TARGET | {"vocab_size": tokenizer.vocab_size}
    config["eos_token_id"] = [tokenizer.control[literal] for literal in ends]
    for name in ("bos_token_id", "pad_token_id"):
        del config[name]
    draw = torch.Generator().manual_seed(seed)
    _save_config(target, config)
    declared = read_target(str(target))
    weights = _weights(target_config(declared).expected_tensors(), _bias(tokenizer, _CONTROL), draw)
    save_file(weights, target / "model.safetensors")
    _save_config(drafter, _drafter(config))
    fitted = drafter_config(read_drafter(str(drafter)), declared)
    assert isinstance(fitted, Eagle3Config)
    # The constraint forces the favoured control tokens anyway, and a drafter that proposes nothing else tests nothing.
    shapes = fitted.expected_tensors() | {"lm_head.weight": (tokenizer.vocab_size, _TARGET["hidden_size"])}
    save_file(_weights(shapes, _bias(tokenizer, 0.0), draw), drafter / "model.safetensors")


def _tokenizer(folder: Path, control: Iterable[str]) -> Tokenizer:
    described = json.loads((DEMO / "target" / "tokenizer.json").read_text())
    first = len(described["model"]["vocab"])
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"] = [
        {"id": first + i, "content": literal, "special": True, **plain} for i, literal in enumerate(control)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return dovetail.tokenizer(folder)


def _drafter(target: Mapping[str, Any]) -> dict[str, Any]:
    """An EAGLE-3 config that fits, with all of the target's vocabulary."""
    config = _read(DEMO / "drafter")
    hidden, vocab, layers = target["hidden_size"], target["vocab_size"], target["num_hidden_layers"]
    own = {"hidden_size": hidden, "intermediate_size": target["intermediate_size"], "vocab_size": vocab}
    return config | {
        "draft_vocab_size": vocab,
        "target_hidden_size": hidden,
        "eagle_aux_hidden_state_layer_ids": list(range(1, layers + 1)),
        "torch_dtype": "float32",
        "transformer_layer_config": config["transformer_layer_config"] | _LAYER | own,
    }


def _bias(tokenizer: Tokenizer, control: float) -> Tensor:
    bias = torch.zeros(tokenizer.vocab_size)
    for token in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes(token)
        if token in tokenizer.control_literals:
            bias[token] = control
        elif spelled.isspace():
            bias[token] = _SPACE
        else:
            bias[token] = next((by for beginning, by in _FAVOURED if spelled.startswith(beginning)), 0.0)
    return bias


def _weights(shapes: Mapping[str, tuple[int, ...]], bias: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    """Matrices that keep the size of what goes through them, but for the number that is the same everywhere: layers
    neither read nor change it, the final norm and the head read it as `bias`."""
    hidden = _TARGET["hidden_size"]
    constant = _LOUD * math.sqrt(hidden)
    # What RMS norm makes of that number, and of the others.
    normed, others = constant / math.hypot(_LOUD, _OTHERS), _OTHERS / math.hypot(_LOUD, _OTHERS)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weight = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        else:
            weight = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight", "hidden_norm.weight")):
            weight = weight / others
            weight[_CONSTANT] = 0
        elif name.endswith("embed_tokens.weight"):
            weight = torch.randn(shape, generator=draw)
            weight[:, _CONSTANT] = constant
        elif name == "lm_head.weight":
            weight *= _SPREAD / others
            weight[:, _CONSTANT] = bias / normed
        elif name == "fc.weight":  # of three hidden states, each with that number
            weight[:, _CONSTANT::hidden] = 0
            weight[_CONSTANT] = 0
            weight[_CONSTANT, _CONSTANT] = 1
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[_CONSTANT] = 0
        tensors[name] = weight
    return tensors


def _read(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return read


def _save_config(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
