"""`Tokenizer`: text to token ids and token ids to bytes, by any library, with a cache of encoded texts."""

from __future__ import annotations

import functools
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.errors import LibraryPanic, RenderError, guarded
from dovetail.events import is_visible
from dovetail.tokens.prompt import CUT, TokenSpan


class Tokenizer(ABC):
    """A model's tokenizer. Subclasses implement `_encode` and `_bytes` with a library.

    `control`: the literal of each control token -> its id.
    `vocab_size`: the highest token id plus one.
    `text_prefix`: the literals of the control tokens that the model's own tokenizer writes before a text.
    """

    control: Mapping[str, int]
    vocab_size: int
    text_prefix: Sequence[str] = ()

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _bytes(self, token: int) -> bytes: ...

    #: Whether a text has the same ids beside any control tokens.
    _context_free = True

    def _places(self, pieces: Sequence[str]) -> list[str]:
        """The argument of `_encode_place` for each text of a prompt's pieces, which is also its key in the cache.

        A tokenizer that is not context-free adds the control tokens beside a text to it.
        """
        raise NotImplementedError

    def _encode_place(self, place: str) -> list[int]:
        return self._encode(place)

    @functools.cached_property
    def control_literals(self) -> Mapping[int, str]:
        """The id of each control token -> its literal."""
        return {token: literal for literal, token in self.control.items()}

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of one token. A text of n bytes has at least ``n / longest_token`` tokens."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    @functools.cached_property
    def blanks(self) -> tuple[int, ...]:
        """The ids of the tokens, except control tokens, whose characters a reader cannot see."""
        ordinary = (token for token in range(self.vocab_size) if token not in self.control_literals)
        texts = ((token, self.token_bytes(token).decode("utf-8", "replace")) for token in ordinary)
        return tuple(token for token, text in texts if text and not is_visible(text))

    @functools.cached_property
    def _byte_cache(self) -> dict[int, bytes]:
        return {}

    @functools.cached_property
    def text_cache(self) -> dict[int, str]:
        """The text of tokens that are neither control tokens nor parts of a character, filled by `Detokenizer`s."""
        return {}

    @functools.cached_property
    def _id_cache(self) -> IdCache:
        return IdCache(self.vocab_size)

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, in which literals of control tokens are ordinary characters."""
        return _checked(self._encode, text)

    def prompt_ids(self, pieces: Sequence[str]) -> list[int]:
        """The token ids of a prompt's pieces (see `Prompt`), equal to what the model's own tokenizer gives for all.

        The ids of each text are cached, because a growing conversation repeats its earlier texts. A `TokenSpan` has ids
        of its own.
        """
        tokens = list(map(self.control.get, pieces[1::2]))
        if None in tokens:
            unknown = [literal for literal in pieces[1::2] if literal not in self.control and literal != CUT]
            if unknown:
                raise RenderError(
                    f"the tokenizer has no control token {unknown[0]!r}: is this the format's own tokenizer?"
                )
        spans = {i: piece.ids for i, piece in enumerate(pieces[::2]) if isinstance(piece, TokenSpan)}
        if spans:
            pieces = ["" if isinstance(piece, TokenSpan) else piece for piece in pieces]
        places = list(pieces[::2]) if self._context_free else self._places(pieces)
        texts = self._id_cache.ids(places, functools.partial(_checked, self._encode_place))
        if spans:
            texts = [spans.get(i, text) for i, text in enumerate(texts)]
        ids: list[int] = []
        for text, token in zip(texts, tokens, strict=False):  # there may be no control token after the last text
            ids += text
            if token is not None:
                ids.append(token)
        if len(texts) > len(tokens):
            ids += texts[-1]
        return ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces of a prompt with exactly these ids: texts, as `TokenSpan`s, and control tokens between them."""
        pieces: list[str] = []
        begin = 0
        for at, literal in enumerate(map(self.control_literals.get, ids)):
            if literal is not None:
                pieces += (self._span(ids[begin:at]), literal)
                begin = at + 1
        return [*pieces, self._span(ids[begin:])]

    def _span(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        texts = list(map(self.text_cache.get, ids))
        if None in texts:
            return TokenSpan(b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace"), tuple(ids))
        return TokenSpan("".join(texts), tuple(ids))  # type: ignore[arg-type]  # None was just ruled out

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of one token, which may end inside a character; b"" for an id outside the vocabulary."""
        cached = self._byte_cache.get(token)
        if cached is not None:
            return cached
        if not 0 <= token < self.vocab_size:
            return b""
        literal = self.control_literals.get(token)
        self._byte_cache[token] = literal.encode() if literal is not None else self._bytes(token)
        return self._byte_cache[token]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole sequence. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


def _checked(encode: Callable[[str], list[int]], text: str) -> list[int]:
    try:
        text.encode()  # refuses lone surrogates: one library replaces them silently, the other raises a TypeError
        return guarded(encode, text)
    except UnicodeEncodeError as error:
        raise RenderError("text holds a lone surrogate, which is not valid Unicode") from error
    except LibraryPanic as error:
        raise RenderError("the tokenizer cannot split the text: a run of one kind of character is too long") from error


class IdCache:
    """A cache of the token ids of recently used texts, bounded by its size in bytes.

    It has two generations. A text that is used enters the young one. When that is full, it becomes the old one, and the
    previous old one is dropped. So a look-up changes nothing and needs no lock, and texts that are used in every turn
    stay.
    """

    _ENTRY_OVERHEAD = 128  # the most bytes of an entry besides its text and its ids

    def __init__(self, vocab_size: int, max_bytes: int = 64 * 1024 * 1024) -> None:
        """`max_bytes` bounds texts and ids together; the default is enough for 15 to 20 million characters."""
        self._max_bytes = max_bytes
        self._id_objects = tuple(range(vocab_size))  # all entries share one object per id
        self._young: dict[str, tuple[int, ...]] = {}
        self._old: dict[str, tuple[int, ...]] = {}
        self._young_bytes = self._old_bytes = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes of all entries."""
        return self._young_bytes + self._old_bytes

    def ids(self, texts: Sequence[str], encode: Callable[[str], Iterable[int]]) -> Sequence[tuple[int, ...]]:
        """The ids of each text. `encode` makes those that are not cached; its exceptions are passed on."""
        cached = list(map(self._young.get, texts))
        for i, ids in enumerate(cached):
            if ids is None:
                cached[i] = self._old_or_new_ids(texts[i], encode)
        return cached  # type: ignore[return-value]  # no item is None any more

    def _old_or_new_ids(self, text: str, encode: Callable[[str], Iterable[int]]) -> tuple[int, ...]:
        ids = self._young.get(text)  # the text occurs twice in this prompt
        if ids is None:
            ids = self._old.get(text)
            if ids is None:
                ids = tuple(map(self._id_objects.__getitem__, encode(text)))
            self._add(text, ids)
        return ids

    def _add(self, text: str, ids: tuple[int, ...]) -> None:
        size = sys.getsizeof(text) + sys.getsizeof(ids) + self._ENTRY_OVERHEAD
        if size > self._max_bytes // 8:
            return
        with self._lock:
            if text in self._young:
                return
            if self._young_bytes + size > self._max_bytes // 2:
                self._old, self._old_bytes = self._young, self._young_bytes
                self._young, self._young_bytes = {}, 0
            self._young[text] = ids
            self._young_bytes += size
