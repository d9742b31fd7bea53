"""A tokenizer from a `tokenizer.json`, byte-level or sentencepiece, by the `tokenizers` library.

The library finds control tokens in text by their literals. So each control token is renamed to a random secret that no
user can write: text then never contains a control token, and the model's splitting and normalizing stay as they are.
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
from dovetail.checkpoints.tokenizer_files import is_text
from dovetail.errors import CheckpointError
from dovetail.tokens.raw_text import text_prefix
from dovetail.tokens.tokenizer import Tokenizer

Spec = dict[str, Any]
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SECRET_LENGTH = 40  # characters of a control token's secret name


class HuggingFaceTokenizer(Tokenizer):
    """Raises `CheckpointError` for a kind of tokenizer that is not supported."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        spec: Spec = read_tokenizer_object(path)
        self._spell, self._starts_with_space = _decoder(spec, path)
        self.text_prefix = text_prefix(path, spec.get("post_processor"))
        markers = [token for token in spec.get("added_tokens") or () if not is_text(token["content"])]
        normalizes = spec.get("normalizer") not in (None, {"type": "Sequence", "normalizers": []})
        #: Control tokens that change whitespace before them.
        self._change_text_before = {
            token["content"] for token in markers if token["lstrip"] or (normalizes and token["normalized"])
        }
        some_change_text_after = any(token["rstrip"] for token in markers)
        self._secrets = _renamed(spec, [token["content"] for token in markers])
        spec |= {"post_processor": None, "truncation": None, "padding": None}
        self._library = tokenizers.Tokenizer.from_str(json.dumps(spec))
        self._secret_ids = {secret: self._id(secret) for secret in self._secrets.values()}
        self.control = {literal: self._secret_ids[secret] for literal, secret in self._secrets.items()}
        self.vocab_size = max(max(self.control.values(), default=-1) + 1, self._library.get_vocab_size())

        splitting = {part: spec.get(part) for part in ("normalizer", "pre_tokenizer")}
        without_prefix = {part: _unprefixed(it) for part, it in splitting.items()}
        self._inner_library = self._library
        if without_prefix != splitting:
            # The same model for text in the middle of a prompt: it adds no space at the beginning.
            empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
            self._inner_library = tokenizers.Tokenizer.from_str(json.dumps(empty | without_prefix))
            self._inner_library.model = self._library.model
            self._inner_library.add_tokens(
                [token for _, token in sorted(self._library.get_added_tokens_decoder().items())]
            )
        # Whether the ids of a text do not depend on its place in a prompt.
        self._context_free = without_prefix == splitting and not (self._change_text_before or some_change_text_after)

    def _id(self, secret: str) -> int:
        token = self._library.token_to_id(secret)
        assert token is not None  # it is one of the added tokens
        return token

    def _encode(self, text: str) -> list[int]:
        return _ids(self._inner_library, text)

    def _places(self, pieces: Sequence[str]) -> list[str]:
        """Each text between the secret names of the control tokens beside it, if these may change its ids."""
        places = []
        before = ""
        for text, literal in zip_longest(pieces[::2], pieces[1::2], fillvalue=""):
            secret = self._secrets.get(literal, "")
            places.append(before + text + (secret if literal in self._change_text_before else "") if text else "")
            before = secret
        return places

    def _encode_place(self, place: str) -> list[int]:
        ids = _ids(self._library, place)
        after = self._secret_ids.get(place[-_SECRET_LENGTH:])
        if after is not None and ids[-1:] != [after]:
            # A normalizer that adds a prefix to a secret keeps the library from finding it, except after a space.
            return self._encode_place(place[:-_SECRET_LENGTH])
        return ids[place[:_SECRET_LENGTH] in self._secret_ids : len(ids) - (after is not None)]

    def _bytes(self, token: int) -> bytes:
        piece = self._library.id_to_token(token)
        return b"" if piece is None else self._spell(piece)

    def decode(self, ids: Iterable[int]) -> str:
        """As the library does it: without the space that the tokenizer adds to the beginning of a text."""
        text = super().decode(ids)
        return text.removeprefix(" ") if self._starts_with_space else text


def _ids(library: Any, text: str) -> list[int]:
    """The ids of `text`, by the library's batch call, because its call for one text holds Python's lock throughout."""
    ids: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _renamed(spec: Spec, literals: Sequence[str]) -> dict[str, str]:
    """Rename control tokens everywhere in `spec`. Returns literal -> secret name, of `_SECRET_LENGTH` characters."""
    # Noncharacters at both ends, which no normalizer merges with their neighbours.
    secret = secrets.token_hex(15)
    names = {literal: f"\ufdd0{secret}{number:08x}\ufdd1" for number, literal in enumerate(literals)}
    for token in spec.get("added_tokens") or ():
        token["content"] = names.get(token["content"], token["content"])
        token["single_word"] = False  # a control token counts next to any character
    model = spec["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # a Unigram model has pieces with scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    elif not names.keys().isdisjoint(vocabulary):
        model["vocab"] = {names.get(piece, piece): token for piece, token in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [(a, b) for a, b in pairs if names.keys().isdisjoint((a, b, a + b))]
    return names


def _decoder(spec: Spec, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """Return a function for the bytes of a vocabulary piece, and whether the tokenizer adds a space before a text."""
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
    except KeyError:  # an added token, whose text is not encoded
        return piece.encode()


def _byte_chars() -> dict[str, int]:
    """The byte of each character in byte-level vocabularies: the GPT-2 table, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in printable}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in set(printable))})
    return table


_BYTE_OF_CHAR = _byte_chars()


def _parts(part: Spec | None) -> Iterator[Spec]:
    """The parts of a decoder, which may be a sequence of decoders."""
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
    """The same normalizer or pre-tokenizer, except that it adds no space to the beginning of a text."""
    if part is None or part["type"] == "Prepend":
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [inner for inner in map(_unprefixed, part[name]) if inner is not None]}
    return {**part, **_NO_PREFIX.get(part["type"], {})}
