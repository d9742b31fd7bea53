"""A vocabulary of Kimi's size for every family: 163,840 tokens, the family's own control tokens among the last 256.

The ordinary tokens are Kimi's if its rank file is available, else made up. The vocabulary is written as a rank file,
for Dovetail, and as a tokenizer.json without merges, for the others, which only need the text of each token.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dovetail
from dovetail.errors import RenderError
from dovetail.formats.base import Format
from dovetail.tokens import Tokenizer
from tests.reading import families

ORDINARY, CONTROL = 163_584, 256
#: Where Kimi's rank file lies, below a folder of other people's data.
KIMI = Path("tokenizers") / "kimi_k25" / "tiktoken.model"
#: The config of a model with this vocabulary. Engines need one, and never load the model.
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "vocab_size": ORDINARY + CONTROL,
    "bos_token_id": ORDINARY,
    "eos_token_id": ORDINARY + 1,
}


def described(data: Path) -> str:
    """The source of the ordinary tokens."""
    return "Kimi's 163,584 tokens" if (data / KIMI).is_file() else "163,584 tokens that were made up"


class Vocabulary:
    """That of one family, below `folder`: `ranks` for Dovetail, `hugging_face` for others, `tokenizer`, `ends`."""

    def __init__(self, name: str, data: Path, folder: Path, ordinary: int = ORDINARY) -> None:
        fmt = dovetail.format(name)
        self.folder = folder / name
        self.ranks, self.hugging_face = self.folder / "ranks", self.folder / "hugging_face"
        for made in (self.ranks, self.hugging_face):
            made.mkdir(parents=True, exist_ok=True)
        _write_ranks(self.ranks / "tiktoken.model", data / KIMI, ordinary)
        declared = {ordinary + i: literal for i, literal in enumerate(_control(fmt))}
        reserved = (i for i in range(ordinary, ordinary + CONTROL) if i not in declared)
        control = declared | {i: f"<|reserved_token_{i}|>" for i in reserved}
        config = {
            "tokenizer_class": "TikTokenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            "added_tokens_decoder": {str(i): {"content": literal} for i, literal in control.items()},
        }
        (self.ranks / "tokenizer_config.json").write_text(json.dumps(config))
        self.tokenizer: Tokenizer = dovetail.tokenizer(self.ranks)
        self.ends = tuple(self.tokenizer.control[literal] for literal in fmt.end_of_turn)
        self._write_hugging_face(control, fmt.end_of_turn)

    def _write_hugging_face(self, control: dict[int, str], ends: tuple[str, ...]) -> None:
        spelled = {token: "".join(_LETTER[byte] for byte in self._bytes(token)) for token in range(min(control))}
        added = [
            {"id": i, "content": literal, "special": literal in ends}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i, literal in sorted(control.items())
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "normalizer": None,
            "post_processor": None,
            "added_tokens": added,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": {text: token for token, text in spelled.items()}, "merges": []},
        }
        sizes = {"vocab_size": len(spelled) + len(control), "eos_token_id": self.ends[0], "bos_token_id": self.ends[0]}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ends[0]}
        for file, data in (
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", config),
            ("config.json", _MODEL | sizes),
        ):
            (self.hugging_face / file).write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token)

    def job(self) -> dict[str, Any]:
        """The vocabulary as a worker loads it."""
        return {
            "ranks": str(self.ranks.resolve()),
            "hugging_face": str(self.hugging_face.resolve()),
            "ends": list(self.ends),
        }


def _control(fmt: Format) -> list[str]:
    """The control tokens of the family's answers, and of its prompts if it writes them itself."""
    literals = dict.fromkeys(families.controls(fmt.name))
    with contextlib.suppress(RenderError):
        messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
        literals |= dict.fromkeys(piece.text for piece in fmt.render(messages, _TOOLS).segments if piece.control)
    return list(literals)


_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def _write_ranks(path: Path, kimi: Path, ordinary: int) -> None:
    if ordinary == ORDINARY and kimi.is_file():
        shutil.copyfile(kimi, path)
        return
    tokens = itertools.islice(_made_up(), ordinary)
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
    path.write_text("\n".join(lines) + "\n")


def _made_up() -> Iterator[bytes]:
    """Bytes, then tokens like those of real vocabularies: white space, numbers, punctuation, words with and without a
    space."""
    seen: set[bytes] = set()

    def texts() -> Iterator[str]:
        yield from (space * count for count in range(2, 40) for space in (" ", "\n", "\t"))
        yield from (str(number) for number in range(1000))
        marks = "{}[]()<>\"':;,.=_-/\\|"
        yield from map("".join, itertools.product(marks, repeat=2))
        yield from map("".join, itertools.product(marks, repeat=3))
        syllables = ["".join(pair) for pair in itertools.product("bcdfghjklmnprstvw", "aeiou")]
        for count in (1, 2, 3):
            for word in map("".join, itertools.product(syllables, repeat=count)):
                yield from (word, " " + word, word.capitalize())
        yield from map(chr, range(0x4E00, 0x9FA6))

    for token in itertools.chain((bytes([byte]) for byte in range(256)), (text.encode() for text in texts())):
        if token not in seen:
            seen.add(token)
            yield token


def _letters() -> dict[int, str]:
    """How byte-level vocabularies spell each byte (GPT-2's): as a printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_LETTER = _letters()
