"""The checkpoints that are measured, as folders that every engine loads: the demo pair, and Llamas of random weights.

No model ends an answer by itself, because it never writes its end token. So engines that cannot be told
to go on write as many tokens as the others.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

#: 349 M parameters, of which a token reads 316 M: all but the table of embeddings.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
#: 154 M parameters, of which a token reads 121 M, and a cache of 8 KiB for each token of context (float32).
MIDDLE = LLAMA | {"num_hidden_layers": 8, "num_key_value_heads": 2, "max_position_embeddings": 32768}
#: Drafts for it: 38 M parameters, of which a token reads 22 M.
ASSISTANT = MIDDLE | {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
_SEED = 20261122
_LOUD = 4  # how much larger than what layers add to it an embedding is that the head is to recognise
_FIRST = 3  # tokens before this one are control tokens


def llama(folder: Path, config: dict[str, Any] = LLAMA, successors: Sequence[int] | None = None) -> Path:
    """Write a Llama with the weights that the seed gives, in bfloat16, unless it is there already.

    Matrices keep the size of what goes through them, so that logits have a spread of about 1 and the likeliest token
    is seldom near the next one. With `successors` it is far: each token's is what the head answers to its embedding,
    whatever came before, in any type and by any engine. So a model can be made that drafts for another with an
    acceptance that is known.
    """
    if (folder / "config.json").is_file() and json.loads((folder / "config.json").read_text()) == config:
        return folder
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _layer(config, hidden).items()}
    shapes["lm_head.weight"] = (vocab, hidden)
    tensors = _random(shapes)
    head = tensors["lm_head.weight"]
    if successors is not None:
        embedding = tensors["model.embed_tokens.weight"]
        head[list(successors[_FIRST:])] = embedding[_FIRST:] * hidden**-0.5
        head[:_FIRST] = 0
        embedding *= _LOUD
    head[config["eos_token_id"]] = 0  # a logit of 0 is never the largest of thousands
    _save(folder, tensors, config)
    _tokenizer(folder, vocab)
    return folder


def successors(config: dict[str, Any], agreeing: float = 1.0) -> list[int]:
    """A token's successor for each token: all that are no control tokens in one circle; of them the share `agreeing`,
    the others' are exchanged among themselves."""
    vocab = config["vocab_size"]
    draw = random.Random(_SEED)
    circle = draw.sample(range(_FIRST, vocab), vocab - _FIRST)
    after = [circle[0]] * vocab
    for token, following in itertools.pairwise([*circle, circle[0]]):
        after[token] = following
    others = draw.sample(circle, round((1 - agreeing) * len(circle)))
    exchanged = [after[token] for token in others]
    for token, following in zip(others, exchanged[1:] + exchanged[:1], strict=True):
        after[token] = following
    return after


def middle(folder: Path, config: dict[str, Any] = MIDDLE) -> Path:
    """The Llama of middle size, below `folder`: after each token comes its successor."""
    return llama(folder / "middle", config, successors(config))


def assistant(folder: Path, agreeing: float, config: dict[str, Any] = ASSISTANT) -> Path:
    """A smaller model that drafts for it, below `folder`, and is right about the share `agreeing` of all tokens."""
    return llama(folder / f"assistant-{agreeing:g}", config, successors(config, agreeing))


def eagle3(folder: Path, target: dict[str, Any], vocab: int) -> Path:
    """Write an EAGLE-3 drafter of random weights with `vocab` tokens for a Llama of the config `target`, unless it is
    there already: one layer as wide as the target's. It costs what such a drafter costs, and guesses nothing."""
    layers, hidden = target["num_hidden_layers"], target["hidden_size"]
    aux = sorted({layers // 4, layers // 2, layers - max(1, layers // 4)})
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": vocab,
        "target_hidden_size": hidden,
        "eagle_aux_hidden_state_layer_ids": aux,
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": target | {"num_hidden_layers": 1},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "../target", "architectures": target["architectures"]},
        },
    }
    if (folder / "config.json").is_file() and json.loads((folder / "config.json").read_text()) == config:
        return folder
    shapes = {"fc.weight": (hidden, len(aux) * hidden), "norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    shapes |= {f"layers.0.{name}": shape for name, shape in _layer(target, 2 * hidden).items()}
    shapes["layers.0.hidden_norm.weight"] = (hidden,)
    tensors = _random(shapes)
    tensors["d2t"] = torch.zeros(vocab, dtype=torch.int64)  # the target's first so many tokens
    _save(folder, tensors, config)
    return folder


def _layer(config: dict[str, Any], read: int) -> dict[str, tuple[int, ...]]:
    """A layer's weights; queries, keys and values are made of `read` numbers."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    return {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (width, read),
        "self_attn.k_proj.weight": (kv_width, read),
        "self_attn.v_proj.weight": (kv_width, read),
        "self_attn.o_proj.weight": (hidden, width),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def _random(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weight = torch.ones(shape)
        else:
            spread = 1.0 if "embed" in name else shape[-1] ** -0.5
            weight = torch.randn(shape, generator=generator) * spread
        tensors[name] = weight.to(torch.bfloat16)
    return tensors


def _save(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """The config last: with it the folder is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def endless(source: Path, folder: Path, eos: int) -> Path:
    """A checkpoint like `source` whose answers end at `eos` alone, a token that it does not write."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name not in ("config.json", "generation_config.json") and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}, indent=2))
    return folder


def _tokenizer(folder: Path, vocab: int) -> None:
    """Bytes, and names for all other ids, because engines need a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"Ġt{i}" for i in range(len(alphabet), vocab))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    declared = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))
