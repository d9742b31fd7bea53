"""Small sentencepiece tokenizers, trained here, each as the data of a `tokenizer.json`.

Their kinds are those of real checkpoints; the contents of their vocabularies do not matter.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Spec = dict[str, Any]

_TEXT = ["Hello world, the quick brown fox. <b>ünïcode</b> def f(x): return x\n\n  indented   <s> [INST] user text"] * 6
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_BASE_TOKENS = ["<unk>", "<s>", "</s>"]

_TO_SPACE = decoders.Replace("▁", " ")
_FROM_SPACE = normalizers.Replace(" ", "▁")
_STRIPPING = decoders.Sequence([_TO_SPACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
_PREPENDING = normalizers.Sequence([normalizers.Prepend("▁"), _FROM_SPACE])


@functools.cache
def _bpe() -> str:
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = _FROM_SPACE
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=_BASE_TOKENS + _BYTES, max_token_length=12, show_progress=False
    )
    trained.train_from_iterator(_TEXT, trainer)
    return json.dumps(json.loads(trained.to_str())["model"])


@functools.cache
def _unigram() -> str:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=_BASE_TOKENS, unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(_TEXT, trainer)
    return json.dumps(json.loads(trained.to_str())["model"])


def _spec(model: str, added: list[tuple[str, Spec]], *, every: Spec | None = None, **parts: Any) -> Spec:
    """`added` tokens are appended to the vocabulary unless they are in it. `every` are flags of `_BASE_TOKENS`."""
    whole = Tokenizer(models.BPE())
    for name, part in parts.items():
        setattr(whole, name, part)
    spec: Spec = json.loads(whole.to_str()) | {"model": json.loads(model)}
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: token for token, (piece, _) in enumerate(vocabulary)}
    tokens: list[Spec] = []
    next_id = len(vocabulary)
    for content, flags in [*((literal, every or {}) for literal in _BASE_TOKENS), *added]:
        token = vocabulary.get(content, next_id)
        next_id += token == next_id
        plain = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        tokens.append({"id": token, "content": content} | plain | flags)
    return spec | {"added_tokens": tokens}


def llama2(**every: Any) -> Spec:
    return _spec(_bpe(), [], every=every, normalizer=_PREPENDING, decoder=_STRIPPING)


def mistral(prepend: str) -> Spec:
    split = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    return _spec(_bpe(), [("[INST]", {}), ("[/INST]", {})], pre_tokenizer=split, decoder=_STRIPPING)


def gemma() -> Spec:
    """Whitespace of some lengths is an added token, in the vocabulary or outside of it."""
    text = {"special": False}
    added = [("\n\n", text), ("▁▁", text), ("<start_of_turn>", {}), ("▁" * 9, text), ("\n" * 9, text)]
    decoder = decoders.Sequence([_TO_SPACE, decoders.ByteFallback(), decoders.Fuse()])
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    return _spec(_bpe(), added, normalizer=_FROM_SPACE, pre_tokenizer=split, decoder=decoder)


def phi3(**user: Any) -> Spec:
    """Some control tokens remove the whitespace beside them."""
    takes = {"rstrip": True}
    added = [
        ("<|user|>", takes | user),
        ("<|end|>", takes),
        ("<mask>", {"lstrip": True}),
        ("<|both|>", {"lstrip": True} | takes),
    ]
    return _spec(_bpe(), added, normalizer=_PREPENDING, decoder=_STRIPPING)


def unigram(prepend: str) -> Spec:
    split, joint = (part.Metaspace(prepend_scheme=prepend) for part in (pre_tokenizers, decoders))
    return _spec(_unigram(), [("<|user|>", {})], normalizer=normalizers.NFKC(), pre_tokenizer=split, decoder=joint)


def byte_level() -> Spec:
    """GPT-2's kind, with a space before every text, and with added tokens for runs of spaces."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        _TEXT, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    added = [("<|endoftext|>", {}), ("   ", {"special": False, "normalized": True}), ("<|pad|>", {"normalized": True})]
    model = json.dumps(json.loads(trained.to_str())["model"])
    return _spec(
        model, added, normalizer=normalizers.NFC(), pre_tokenizer=trained.pre_tokenizer, decoder=decoders.ByteLevel()
    )


KINDS = {
    "Llama 2": llama2,
    "Llama 2, normalized": lambda: llama2(normalized=True),
    "Mistral": lambda: mistral("first"),
    "Metaspace always": lambda: mistral("always"),
    "Metaspace never": lambda: mistral("never"),
    "Gemma": gemma,
    "Phi 3": phi3,
    "Phi 3, normalized": lambda: phi3(normalized=True),
    "Unigram": lambda: unigram("always"),
    "Unigram first": lambda: unigram("first"),
    "byte-level, prefixed": byte_level,
}
