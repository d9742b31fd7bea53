"""The checkpoints that are measured, as folders that every engine loads: the demo pair, and a Llama of random weights.

Neither ends an answer by itself: the token that would is one that they never write, so that engines which cannot be
told to go on write as many tokens as the others.
"""

from __future__ import annotations

import json
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
_SEED = 20261122


def llama(folder: Path, config: dict[str, Any] = LLAMA) -> Path:
    """Write a Llama with the weights that the seed gives, in bfloat16, unless it is there already.

    Matrices keep the size of what goes through them, so that logits have a spread of about 1 and the likeliest token
    is seldom near the next one.
    """
    if (folder / "config.json").is_file() and json.loads((folder / "config.json").read_text()) == config:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (width, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv_width, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv_width, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, width),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    shapes["lm_head.weight"] = (vocab, hidden)
    generator = torch.Generator().manual_seed(_SEED)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weight = torch.ones(shape)
        else:
            spread = 1.0 if "embed" in name else shape[-1] ** -0.5
            weight = torch.randn(shape, generator=generator) * spread
        tensors[name] = weight.to(torch.bfloat16)
    tensors["lm_head.weight"][config["eos_token_id"]] = 0  # a logit of 0 is never the largest of thousands
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _tokenizer(folder, vocab)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


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
    """Bytes, and names for all other ids: nobody reads what random weights write, but engines want a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"Ġt{i}" for i in range(len(alphabet), vocab))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    declared = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))
