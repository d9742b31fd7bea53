"""Starts the target with the circuit that copies: "after this token came that one" (arXiv:2209.11895, induction heads).

Trained from noise, a model of this size finds that circuit only after far more tokens than two cores see in an hour,
and without it no call can repeat a name or a value. So it is laid into the initial weights and training goes on from
there: two heads of the first layer look one token back and note what stood there; the second layer's heads look for
notes that say "the current token" and pass on the token found at them; embedding and output start out tied, and tokens
that spell the same word (` Paris`, `Paris`, `_paris`) start out alike, since a value in a sentence and in JSON is not
the same token.
"""

from __future__ import annotations

import torch

from dovetail.tokens import Tokenizer
from training.model import MLA, Target

_SCALE = 0.5  # of a token's own coordinates in the residual stream
_TOKEN = slice(0, 96)  # coordinates of the residual stream that say which token this is
_NOTE = 96  # from here on, 64 coordinates that say which token came before
_CONSTANT = slice(160, 192)  # coordinates that are the same for every token: what a position-only query is made of
_NOISE = 0.01
_SHARED = 0.8  # how much of a token's coordinates is its word's (the rest is its own; the squares add up to one)


@torch.no_grad()
def lay_induction(model: Target, tokenizer: Tokenizer) -> None:
    """Overwrite the embedding, the output and the first two attention layers of a freshly made target."""
    s = model.s
    embedding = model.model.embed_tokens.weight
    words = [
        tokenizer.token_bytes(token).decode("utf-8", "replace").lstrip(' _."').lower() for token in range(s.vocab_size)
    ]
    number = {word: n for n, word in enumerate(dict.fromkeys(words))}
    shared = torch.randn(len(number), _TOKEN.stop)[torch.tensor([number[word] for word in words])]
    tokens = _SHARED * shared + (1 - _SHARED**2) ** 0.5 * torch.randn(s.vocab_size, _TOKEN.stop)
    embedding.normal_(std=_SCALE * 0.05)
    embedding[:, _TOKEN] = tokens * _SCALE
    embedding[:, _CONSTANT] += _SCALE
    model.lm_head.weight.normal_(std=_NOISE)
    model.lm_head.weight[:, _TOKEN] += tokens * 0.12
    look_back, find = (model.model.layers[i].self_attn for i in (0, 1))
    for attention in (look_back, find):
        _clear(attention)
        _select(attention.q_a_proj.weight, range(64), range(64))
        _select(attention.q_a_proj.weight, range(64, 96), range(_CONSTANT.start, _CONSTANT.stop))
    _look_back(look_back, model.frequencies)
    _find(find)


def _look_back(attention: MLA, frequencies: torch.Tensor) -> None:
    """Heads 0 and 1 attend to the token before, by rotary phase alone, and note 32 of its coordinates each."""
    s = attention.s
    width = s.qk_nope_head_dim + s.qk_rope_head_dim
    q_b = attention.q_b_proj.weight.view(s.num_attention_heads, width, s.q_lora_rank)
    kv_b = attention.kv_b_proj.weight.view(s.num_attention_heads, -1, s.kv_lora_rank)
    strength = 7.5 / 32
    for pair, turn in enumerate(frequencies[:8].tolist()):
        phase = torch.tensor(turn)
        for head in (0, 1):
            # The query is a key turned back by one position, so their phases meet one token ago.
            q_b[head, s.qk_nope_head_dim + 2 * pair, 64:] += strength * phase.cos()
            q_b[head, s.qk_nope_head_dim + 2 * pair + 1, 64:] -= strength * phase.sin()
        attention.kv_a_proj_with_mqa.weight[s.kv_lora_rank + 2 * pair, _CONSTANT] += strength / 1.22
    _select(attention.kv_a_proj_with_mqa.weight, range(96), range(96))
    for head in (0, 1):
        _select(kv_b[head], range(s.qk_nope_head_dim, s.qk_nope_head_dim + 32), range(32 * head, 32 * head + 32), 0.5)
        start = _NOTE + 32 * head
        _select(attention.o_proj.weight, range(start, start + 32), range(32 * head, 32 * head + 32), _SCALE)


def _find(attention: MLA) -> None:
    """Every head looks for the current token in the notes (two heads by each half) and passes on 24 coordinates."""
    s = attention.s
    q_b = attention.q_b_proj.weight.view(s.num_attention_heads, -1, s.q_lora_rank)
    kv_b = attention.kv_b_proj.weight.view(s.num_attention_heads, -1, s.kv_lora_rank)
    _select(attention.kv_a_proj_with_mqa.weight, range(64), range(_NOTE, _NOTE + 64))
    _select(attention.kv_a_proj_with_mqa.weight, range(64, 160), range(96))
    for head in range(s.num_attention_heads):
        half = 32 * (head // 2)
        _select(q_b[head], range(32), range(half, half + 32), 1.9)
        _select(kv_b[head], range(32), range(half, half + 32), 1.1)
        _select(kv_b[head], range(32, 56), range(64 + 24 * head, 88 + 24 * head), 0.56)
        _select(attention.o_proj.weight, range(24 * head, 24 * head + 24), range(32 * head, 32 * head + 24), 2 * _SCALE)


def _clear(attention: MLA) -> None:
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
        getattr(attention, name).weight.normal_(std=_NOISE)


def _select(weight: torch.Tensor, rows: range, columns: range, gain: float = 1.0) -> None:
    """Make each of `rows` pass on the coordinate of `columns` beside it."""
    weight[torch.tensor(rows), torch.tensor(columns)] += gain
