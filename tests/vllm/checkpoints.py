"""Tiny checkpoints of random weights that vLLM on CPU and the embedded engine both run, with the demo's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.engine import shapes
from tests.engine.checkpoints import DRAFTER, write_drafter, write_mtp_target
from tests.engine.test_against_transformers import write
from tests.engine.test_against_vllm import LLAMA, MLA

DEMO = Path(dovetail.__file__).parent / "data" / "demo"
TARGET, EAGLE3 = DEMO / "target", DEMO / "drafter"
_TOKENS = dovetail.tokenizer(TARGET)
_SIZES: dict[str, Any] = {
    "vocab_size": 3072,
    "bos_token_id": _TOKENS.control["[BOS]"],
    "eos_token_id": _TOKENS.control["<|im_end|>"],
    "max_position_embeddings": 1024,
}


def llama(folder: Path) -> Path:
    """A Llama."""
    return _with_tokenizer(write(folder / "target", "Llama", LLAMA | _SIZES))


def eagle3(folder: Path) -> Path:
    """An EAGLE-3 drafter in the speculators format, and the Llama that it names, beside it."""
    llama(folder)
    layer = DRAFTER["transformer_layer_config"] | {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_hidden_layers": 1,
        "vocab_size": _SIZES["vocab_size"],
        "max_position_embeddings": 1024,
    }
    verifier = {"name_or_path": "../target", "architectures": ["LlamaForCausalLM"]}
    return write_drafter(
        folder / "drafter",
        MLA | _SIZES,  # of which only the sizes count, which are the Llama's too
        transformer_layer_config=layer,
        speculators_config=DRAFTER["speculators_config"] | {"verifier": verifier},
        target_hidden_size=64,
        draft_vocab_size=1024,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
    )


def going_round(folder: Path) -> Path:
    """A Llama that says the same eight tokens over and over, so that a lookup finds them."""
    size = _SIZES["vocab_size"]
    return _following(folder, [token // 8 * 8 + (token + 1) % 8 for token in range(size)])


def endless(folder: Path, text: str) -> Path:
    """A Llama that opens reasoning where Kimi's answer begins, and else says `text` over and over.

    No two tokens of `text` may be the same.
    """
    said = list(_TOKENS.encode(text))
    after = dict(zip(said, [*said[1:], said[0]], strict=True))
    after[_TOKENS.control["<|im_middle|>"]] = _TOKENS.control["<think>"]
    return _following(folder, [after.get(token, said[0]) for token in range(_SIZES["vocab_size"])])


def _following(folder: Path, following: list[int]) -> Path:
    """A Llama that says after each token the one in `following`."""
    config = shapes.LLAMA | _SIZES | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    return _with_tokenizer(shapes.llama(folder / "target", config, following))


def mtp(folder: Path) -> Path:
    """DeepSeek-V3's architecture with one layer that drafts."""
    return _with_tokenizer(write_mtp_target(folder / "target", **(MLA | _SIZES)))


def _with_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, folder / name)
    return folder
