"""An engine at one moment, to be begun from again and again.

What an engine knows of its sequences is small: tokens, tables of blocks, how far each is. That is copied. Tensors are
not: rows of a cache that were written after the moment are written again before anybody reads them, as after a draft
that did not stand. So a prompt is computed once however often its decoding is measured.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from dovetail.engine.core import LLMCore
from dovetail.engine.overlap import Overlap
from dovetail.gate import Gate
from dovetail.tokens import Tokenizer

_T = TypeVar("_T")
#: Not copied: what does not change, what learns beyond the moment, and what cannot be.
_SHARED = (torch.Tensor, Overlap, Gate, Tokenizer)


class Frozen:
    """`core` as it is now. Only one of its copies may run at a time, and nothing else in the same cache."""

    def __init__(self, core: LLMCore, shared: tuple[type, ...] = ()) -> None:
        """Objects of the types `shared` are not copied either."""
        self._shared: list[Any] = []
        file = io.BytesIO()
        _Pickler(file, self._shared, _SHARED + shared).dump(core)
        self._state = file.getvalue()

    def find(self, kind: type[_T]) -> _T:
        """The one object of this type that copies share."""
        (found,) = (obj for obj in self._shared if isinstance(obj, kind))
        return found

    def thaw(self, exchange: Callable[[Any], Any] = lambda shared: shared) -> LLMCore:
        """A copy that goes on from that moment. `exchange` is given each object that is shared, and gives what the copy
        has instead."""
        core: LLMCore = _Unpickler(io.BytesIO(self._state), self._shared, exchange).load()
        return core


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any], types: tuple[type, ...]) -> None:
        super().__init__(file, protocol=5)
        self._objects, self._types = shared, types
        self._known: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._types):
            return None
        if id(obj) not in self._known:
            self._known[id(obj)] = len(self._objects)
            self._objects.append(obj)
        return self._known[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any], exchange: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._objects, self._exchange = shared, exchange

    def persistent_load(self, pid: int) -> Any:
        return self._exchange(self._objects[pid])
