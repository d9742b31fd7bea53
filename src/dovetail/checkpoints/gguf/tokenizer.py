"""The tokenizer of a GGUF file, as the tokenizer.json and tokenizer_config.json of the same model on the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.checkpoints.gguf.config import CONTROL
from dovetail.errors import CheckpointError

_UNKNOWN, _USER_DEFINED, _BYTE = 2, 4, 6  # types of tokens
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, *, letters: str = r"\p{L}", after: str = r"[\r\n]*") -> str:
    """The pattern of words since cl100k: contractions, words, `digits`, and marks with `after` behind them."""
    others = letters.replace("\\p{L}", "").strip("[]")
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{others}\p{{N}}]+{after}|{_LINES}"
    )


_O200K = (
    r"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{end}"
    r"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{end}"
    r"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + _LINES.replace("{", "{{").replace("}", "}}")
)
_LLAMA3 = (_words(r"\p{N}{1,3}"),)
_QWEN2 = (_words(r"\p{N}"),)
_ONE_DIGIT = (r"\p{N}", _GPT2)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _LINES,
)
#: How text is split before its pieces are encoded: regular expressions, applied one after the other, as in the models'
#: own tokenizer.json. The names are llama.cpp's.
_SPLITS: Mapping[str, tuple[str, ...]] = {
    name: patterns
    for names, patterns in (
        ("default gpt-2 phi-2 olmo mpt jais trillion granite-docling", (_GPT2,)),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b", _ONE_DIGIT),
        ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2 minicpm5", _LLAMA3),
        ("dbrx smaug-bpe glm4 glm5 chatglm-bpe", _LLAMA3),
        ("qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan solar-open grok-2", _QWEN2),
        ("qwen35", (_words(r"\p{N}", letters=r"[\p{L}\p{M}]"),)),
        ("deepseek-v3 hunyuan-dense joyai-llm", _DEEPSEEK3),
        ("gpt-4o llama4 kanana2 minimax-m2", (_O200K.format(end=_CONTRACTIONS + "?", digits=r"\p{N}{1,3}"),)),
        ("tekken", (_O200K.format(end="", digits=r"\p{N}"),)),
    )
    for name in names.split()
}
#: The names whose tokenizers take a piece that is a token as it is, and write a bos_token where the file does not say.
_LIKE_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken")
#: What to do where the file's own tokenizer cannot be used.
_INSTEAD = ": give the model's original folder, and --engine URL of a llama-server that runs the file"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tokenizer_json(metadata: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The tokenizer.json. Raises `CheckpointError` for a kind of tokenizer that is not known."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{file} holds no tokenizer{_INSTEAD}")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    vocabulary = _vocabulary(tokens)
    spec: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    spec["added_tokens"] = list(_added(tokens, kinds))
    if kind == "gpt2":
        return spec | _byte_level(metadata, vocabulary, file)
    if kind == "gemma4":
        return spec | _by_merges(metadata, vocabulary)
    if kind == "llama":
        return spec | _by_scores(metadata, vocabulary, kinds, file)
    raise CheckpointError(f"{file}: its tokenizer is of the kind {kind!r}, which is not read{_INSTEAD}")


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer_config.json: special tokens and chat templates."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for ours, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            config[f"{ours}_token"] = tokens[token]
    begins = metadata.get("tokenizer.ggml.add_bos_token")
    if begins is None:
        kind = metadata.get("tokenizer.ggml.model")
        begins = kind == "llama" or (kind == "gpt2" and metadata.get("tokenizer.ggml.pre") in _LIKE_LLAMA3)
    config["add_bos_token"] = bool(begins)
    template, named = "tokenizer.chat_template", metadata.get("tokenizer.chat_templates") or []
    templates = {"default": metadata.get(template)} | {name: metadata.get(f"{template}.{name}") for name in named}
    templates = {name: source for name, source in templates.items() if isinstance(source, str)}
    if list(templates) == ["default"]:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": name, "template": source} for name, source in templates.items()]
    return config


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    """Tokens by their ids. One that is there twice has a name of its own the second time, since it is never encoded."""
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(tokens):
        vocabulary[token if token not in vocabulary else f"{token}\ufdd0{i}"] = i
    return vocabulary


def _added(tokens: list[str], kinds: list[int]) -> Iterator[dict[str, Any]]:
    """The tokens that are found in text before it is split."""
    for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind in (CONTROL, _USER_DEFINED, _UNKNOWN) and token:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            yield {"id": i, "content": token, **flags, "special": kind != _USER_DEFINED}


def _byte_level(metadata: Mapping[str, Any], vocabulary: dict[str, int], file: Path) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    patterns = _SPLITS.get(pre)
    if patterns is None:
        raise CheckpointError(f"{file}: how its tokenizer splits text ({pre!r}) is not known here{_INSTEAD}")
    splits = [_split(pattern) for pattern in patterns]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTE_LEVEL]},
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": _bpe(vocabulary, _merges(metadata, vocabulary), ignore_merges=pre in _LIKE_LLAMA3),
    }


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _merges(metadata: Mapping[str, Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges, each of two tokens with one space between them; the tokens may have spaces at their ends."""
    pairs = []
    for merge in metadata.get("tokenizer.ggml.merges") or []:
        cut = merge.find(" ", 1)
        while cut > 0 and not (merge[:cut] in vocabulary and merge[cut + 1 :] in vocabulary):
            cut = merge.find(" ", cut + 1)
        if cut > 0 and merge[:cut] + merge[cut + 1 :] in vocabulary:
            pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _by_merges(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> dict[str, Any]:
    """BPE over letters, where "▁" is the space and what is no token becomes bytes."""
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": _split("\\n+"),
        "decoder": _spelled(),
        "model": _bpe(vocabulary, _merges(metadata, vocabulary), byte_fallback=True),
    }


def _by_scores(metadata: Mapping[str, Any], vocabulary: dict[str, int], kinds: list[int], file: Path) -> dict[str, Any]:
    """Sentencepiece's BPE, which merges the pair whose token has the highest score."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary):
        raise CheckpointError(f"{file}: its tokenizer has no score for each token")
    plain = {token: i for token, i in vocabulary.items() if kinds[i] not in (CONTROL, _UNKNOWN, _BYTE)}
    merges = [
        (-scores[i], i, len(token[:cut]), token[:cut], token[cut:])
        for token, i in plain.items()
        if kinds[i] != _USER_DEFINED
        for cut in range(1, len(token))
        if token[:cut] in plain and token[cut:] in plain
    ]
    merges.sort(key=lambda merge: merge[:3])
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}
    return {
        "normalizer": prepended if prefix else space,
        "pre_tokenizer": None,
        "decoder": _spelled(strip=prefix),
        "model": _bpe(vocabulary, [merge[3:] for merge in merges], byte_fallback=True),
    }


def _spelled(*, strip: bool = False) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "type": "Sequence",
        "decoders": [*parts, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else [])],
    }


def _bpe(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": merges,
    }
