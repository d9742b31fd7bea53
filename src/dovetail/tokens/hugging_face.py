"""A `tokenizer.json`, byte-level or in the manner of sentencepiece, by the `tokenizers` library.

The library finds control tokens in text by what they are called. Here each one is given a name of its own making that
nobody can spell, so text cannot hold one, and nothing else of the model's own splitting and normalizing is touched.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dovetail.checkpoints.files import read_tokenizer_object
from dovetail.errors import CheckpointError
from dovetail.tokens.tokenizer import Tokenizer

Spec = dict[str, Any]
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_NAME = 40  # characters of a name


class HuggingFaceTokenizer(Tokenizer):
    """Raises `CheckpointError` for a kind of tokenizer that is not supported."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        spec: Spec = read_tokenizer_object(path)
        self._spell, self._starts_with_space = _decoder(spec, path)
        markers = [token for token in spec.get("added_tokens") or () if not _is_text(token["content"])]
        normalizes = spec.get("normalizer") not in (None, {"type": "Sequence", "normalizers": []})
        #: Control tokens that change the text in front of them, as far as it is white space.
        self._reach_back = {
            token["content"] for token in markers if token["lstrip"] or (normalizes and token["normalized"])
        }
        reach_on = any(token["rstrip"] for token in markers)
        self._names = _renamed(spec, [token["content"] for token in markers])
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        self._library = tokenizers.Tokenizer.from_str(json.dumps(spec))
        self._named = {name: self._id(name) for name in self._names.values()}
        self.control = {literal: self._named[name] for literal, name in self._names.items()}
        self.vocab_size = max(max(self.control.values(), default=-1) + 1, self._library.get_vocab_size())

        splitting = {part: spec.get(part) for part in ("normalizer", "pre_tokenizer")}
        inside = {part: _unprefixed(it) for part, it in splitting.items()}
        self._inside = self._library
        if inside != splitting:
            # The same model, for text in the middle of a text: without the space that is put in front of a beginning.
            empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
            self._inside = tokenizers.Tokenizer.from_str(json.dumps(empty | inside))
            self._inside.model = self._library.model
            self._inside.add_tokens([token for _, token in sorted(self._library.get_added_tokens_decoder().items())])
        # Whether text is encoded the same wherever it stands in a prompt.
        self._anywhere = inside == splitting and not (self._reach_back or reach_on)

    def _id(self, name: str) -> int:
        token = self._library.token_to_id(name)
        assert token is not None  # it has just been told of it
        return token

    def _encode(self, text: str) -> list[int]:
        return _ids(self._inside, text)

    def _places(self, pieces: Sequence[str]) -> list[str]:
        """The text between the names of its neighbours: the library then sees all that makes a difference."""
        if self._anywhere:
            return super()._places(pieces)
        places = []
        before = ""
        for text, literal in zip_longest(pieces[::2], pieces[1::2], fillvalue=""):
            name = self._names.get(literal, "")
            places.append(before + text + (name if literal in self._reach_back else "") if text else "")
            before = name
        return places

    def _encode_place(self, place: str) -> list[int]:
        ids = _ids(self._library, place)
        after = self._named.get(place[-_NAME:])
        if after is not None and ids[-1:] != [after]:
            # Where its normalizer puts something in front of a name, the library sees it only behind a space.
            return self._encode_place(place[:-_NAME])
        return ids[place[:_NAME] in self._named : len(ids) - (after is not None)]

    def _bytes(self, token: int) -> bytes:
        piece = self._library.id_to_token(token)
        return b"" if piece is None else self._spell(piece)

    def decode(self, ids: Iterable[int]) -> str:
        """As the library does it: the space that was put in front of a beginning is taken away."""
        text = super().decode(ids)
        return text.removeprefix(" ") if self._starts_with_space else text


def _ids(library: Any, text: str) -> list[int]:
    """By the library's call for many texts: that for one holds Python's lock, for seconds if the text is long."""
    ids: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _is_text(content: str) -> bool:
    """Whether an added token is white space or one byte: there to save tokens, and no marker."""
    return content.replace("▁", " ").isspace() or _BYTE.fullmatch(content) is not None


def _renamed(spec: Spec, literals: Sequence[str]) -> dict[str, str]:
    """Literal -> the name, `_NAME` characters long, that `spec` calls it by from here on, in all its parts."""
    # Noncharacters at both ends, which no normalizer joins with what stands beside them.
    secret = secrets.token_hex(15)
    names = {literal: f"\ufdd0{secret}{number:08x}\ufdd1" for number, literal in enumerate(literals)}
    for token in spec.get("added_tokens") or ():
        token["content"] = names.get(token["content"], token["content"])
        token["single_word"] = False  # a marker is one whatever stands beside it
    model = spec["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram's: pieces with their scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    elif not names.keys().isdisjoint(vocabulary):
        model["vocab"] = {names.get(piece, piece): token for piece, token in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [(a, b) for a, b in pairs if names.keys().isdisjoint((a, b, a + b))]
    return names


def _decoder(spec: Spec, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """What a piece of the vocabulary spells, and whether a text's first space is not part of the text."""
    kind = spec.get("model", {}).get("type", "BPE")
    parts = list(_parts(spec.get("decoder")))
    kinds = " ".join(part["type"] for part in parts)
    if kind in ("BPE", "Unigram"):
        if "ByteLevel" in kinds:
            return _spell_byte_level, False
        if kinds == "Metaspace":
            return _speller([(parts[0]["replacement"], " ")], False), parts[0].get("prepend_scheme") != "never"
        replaced = [(part["pattern"].get("String"), part["content"]) for part in parts if part["type"] == "Replace"]
        strips = [part for part in parts if part["type"] == "Strip"]
        if (
            re.fullmatch("Replace( Replace)*( ByteFallback)?( Fuse( Strip)?)?", kinds)
            and all(old is not None for old, _ in replaced)
            and all((part["content"], part["start"], part["stop"]) == (" ", 1, 0) for part in strips)
        ):
            return _speller(replaced, "ByteFallback" in kinds), bool(strips)
    raise CheckpointError(
        f"{path}: tokenizers of this kind are not supported ({kind} with the decoder {kinds or 'none'}); byte-level "
        "and sentencepiece ones are (BPE or Unigram, with ByteLevel, Metaspace, or Replace, ByteFallback, Fuse, Strip)"
    )


def _speller(replaced: Sequence[tuple[str, str]], by_bytes: bool) -> Callable[[str], bytes]:
    def spell(piece: str) -> bytes:
        for old, new in replaced:
            piece = piece.replace(old, new)
        byte = _BYTE.fullmatch(piece) if by_bytes else None
        return bytes.fromhex(byte[1]) if byte else piece.encode()

    return spell


def _spell_byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHAR[c] for c in piece)
    except KeyError:  # an added token, which is spelled as it stands
        return piece.encode()


def _byte_chars() -> dict[str, int]:
    """The visible character that stands for each byte in byte-level vocabularies (the GPT-2 table), inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in printable}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in set(printable))})
    return table


_BYTE_OF_CHAR = _byte_chars()


def _parts(part: Spec | None) -> Iterator[Spec]:
    """A decoder's parts, one by one."""
    if part is not None and part["type"] == "Sequence":
        for inner in part["decoders"]:
            yield from _parts(inner)
    elif part is not None:
        yield part


_NO_PREFIX: dict[str, Spec] = {
    "ByteLevel": {"add_prefix_space": False},
    "Metaspace": {"add_prefix_space": False, "prepend_scheme": "never"},
}


def _unprefixed(part: Spec | None) -> Spec | None:
    """A normalizer or pre-tokenizer that puts no space in front of a text."""
    if part is None or part["type"] == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [inner for inner in map(_unprefixed, part[name]) if inner is not None]}
    return {**part, **_NO_PREFIX.get(part["type"], {})}
