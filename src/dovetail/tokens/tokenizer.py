"""`Tokenizer`: token ids for text and bytes for token ids, whatever library is behind it; and what it remembers."""

from __future__ import annotations

import functools
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.errors import LibraryPanic, RenderError, guarded
from dovetail.tokens.prompt import CUT


class Tokenizer(ABC):
    """`control` maps each control token's literal to its id; `vocab_size` is the highest id plus one."""

    control: Mapping[str, int]
    vocab_size: int

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _bytes(self, token: int) -> bytes: ...

    def _places(self, pieces: Sequence[str]) -> list[str]:
        """For each text of a prompt's pieces, what `_encode_place` has to know of it: the text, and what is around it
        where that makes a difference. Ids are remembered by that."""
        return list(pieces[::2])

    def _encode_place(self, place: str) -> list[int]:
        return self._encode(place)

    @functools.cached_property
    def control_literals(self) -> Mapping[int, str]:
        """Control token id -> literal."""
        return {token: literal for literal, token in self.control.items()}

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes that one token stands for: text of n bytes is at least ``n / longest_token`` tokens."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    @functools.cached_property
    def _byte_cache(self) -> dict[int, bytes]:
        return {}

    @functools.cached_property
    def _texts(self) -> dict[int, str]:
        """The text of every ordinary token that was met so far and stands for whole characters only."""
        return {}

    @functools.cached_property
    def _memory(self) -> Memory:
        return Memory(self.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Ids that spell `text` wherever it stands; a control token's literal in it is ordinary characters."""
        return _checked(self._encode, text)

    def prompt_ids(self, pieces: Sequence[str]) -> list[int]:
        """Ids of a prompt's pieces (see `Prompt`), as the model's own tokenizer makes them of the whole.

        Those of its texts are remembered for a while: a conversation that grows is made of the texts it had before.
        """
        tokens = list(map(self.control.get, pieces[1::2]))
        if None in tokens:
            unknown = [literal for literal in pieces[1::2] if literal not in self.control and literal != CUT]
            if unknown:
                raise RenderError(
                    f"the tokenizer has no control token {unknown[0]!r}: is this the format's own tokenizer?"
                )
        texts = self._memory.ids(self._places(pieces), functools.partial(_checked, self._encode_place))
        ids: list[int] = []
        for text, token in zip(texts, tokens, strict=False):  # the last text may have no control token behind it
            ids += text
            if token is not None:
                ids.append(token)
        if len(texts) > len(tokens):
            ids += texts[-1]
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of one token (perhaps part of a character); b"" for an id outside the vocabulary."""
        found = self._byte_cache.get(token)
        if found is None and not 0 <= token < self.vocab_size:
            return b""
        if found is None:
            literal = self.control_literals.get(token)
            found = literal.encode() if literal is not None else self._bytes(token)
            self._byte_cache[token] = found
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole sequence; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def _checked(encode: Callable[[str], list[int]], text: str) -> list[int]:
    try:
        text.encode()  # one library replaces lone surrogates in silence, the other takes such text for no text
        return guarded(encode, text)
    except UnicodeEncodeError as error:
        raise RenderError("text holds a lone surrogate, which is not valid Unicode") from error
    except LibraryPanic as error:
        raise RenderError("text that the tokenizer cannot split: a run of one kind is too long") from error


class Memory:
    """Token ids of the texts that were used lately, up to a number of bytes.

    In two generations: what is used goes into the younger, and when that is full it becomes the older, and the one
    before is forgotten. So a look-up moves nothing and needs no lock, and a text that is used in every turn stays.
    """

    MOST = 64 * 1024 * 1024  # bytes of texts and ids together: 15 to 20 million characters of long texts
    _ENTRY = 128  # bytes that an entry takes beside its text and its ids, at most

    def __init__(self, vocab_size: int) -> None:
        self._numbers = tuple(range(vocab_size))  # an id is one object however often it is remembered
        self._young: dict[str, tuple[int, ...]] = {}
        self._old: dict[str, tuple[int, ...]] = {}
        self._bytes = 0  # of the younger
        self._lock = threading.Lock()

    def ids(self, texts: Sequence[str], encode: Callable[[str], Iterable[int]]) -> Sequence[tuple[int, ...]]:
        """Ids of each text, by `encode` where they are not remembered. What `encode` raises is raised."""
        found = list(map(self._young.get, texts))
        for i, ids in enumerate(found):
            if ids is None:
                found[i] = self._look_again(texts[i], encode)
        return found  # type: ignore[return-value]  # none is None any more

    def _look_again(self, text: str, encode: Callable[[str], Iterable[int]]) -> tuple[int, ...]:
        ids = self._young.get(text)  # twice in one prompt
        if ids is None:
            ids = self._old.get(text)
            if ids is None:
                ids = tuple(map(self._numbers.__getitem__, encode(text)))
            self._keep(text, ids)
        return ids

    def _keep(self, text: str, ids: tuple[int, ...]) -> None:
        size = sys.getsizeof(text) + sys.getsizeof(ids) + self._ENTRY
        if size > self.MOST // 8:
            return
        with self._lock:
            if text in self._young:
                return
            if self._bytes + size > self.MOST // 2:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._young[text] = ids
            self._bytes += size
