"""Typed access to the fields of one JSON object: every value is checked and bounded, every error names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.errors import CheckpointError

LARGEST = 2**40  # larger numbers are mistakes, and sizes computed from them would be meaningless
_MOST_LAYERS = 1024  # the largest known model has 126


class Fields(msgspec.Struct, frozen=True):
    """The fields of one JSON object. `where` names the file, and the block in it, at the start of every error.

    The readers take several names because model families call one thing by several names. They return the first of
    `names` that is present and not null, or None, and raise `CheckpointError` for a value of the wrong kind.
    """

    raw: Mapping[str, Any]
    where: str

    def number(self, *names: str) -> int | None:
        """A whole number, 0 or more."""
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if type(value) is not int or not 0 <= value < LARGEST:
                    raise self.error(f"{name} must be a whole number, found {value!r:.80}")
                return value
        return None

    def size(self, *names: str) -> int:
        """A whole number above zero, which must be present."""
        value = self.number(*names)
        if not value:
            raise self.error(f"{names[0]} is {'0' if value == 0 else 'missing'}, and the model's shape depends on it")
        return value

    def real(self, *names: str) -> float | None:
        """A number, whole or not."""
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < LARGEST:
                    raise self.error(f"{name} must be a number, found {value!r:.80}")
                return float(value)
        return None

    def positive(self, name: str) -> float | None:
        """A number above zero."""
        value = self.real(name)
        if value is not None and value <= 0:
            raise self.error(f"{name} must be above zero, found {value:g}")
        return value

    def text(self, *names: str) -> str | None:
        value: str | None = self._kind(str, "text", names)
        return value

    def flag(self, *names: str) -> bool:
        """true or false; an absent flag is false."""
        return bool(self._kind(bool, "true or false", names))

    def block(self, *names: str) -> Fields | None:
        """The object under one of `names`, as fields of its own."""
        value: dict[str, Any] | None = self._kind(dict, "an object", names)
        if value is None:
            return None
        name = next(name for name in names if self.raw.get(name) is value)
        return Fields(value, f"{self.where}: {name}")

    def items(self, *names: str) -> list[Any] | None:
        value: list[Any] | None = self._kind(list, "a list", names)
        return value

    def numbers(self, *names: str) -> tuple[int, ...] | None:
        """A list of whole numbers, negative ones included."""
        items = self.items(*names)
        if items is None:
            return None
        if not all(type(item) is int and abs(item) < LARGEST for item in items):
            raise self.error(f"{names[0]} must be a list of whole numbers, found {items!r:.80}")
        return tuple(items)

    def layers(self) -> int:
        """How many layers the model has."""
        count = self.size("num_hidden_layers", "n_layer", "num_layers")
        if count > _MOST_LAYERS:
            raise self.error(f"num_hidden_layers is {count}, at most {_MOST_LAYERS} are supported")
        return count

    def hidden(self) -> int:
        """The width of the hidden states."""
        return self.size("hidden_size", "n_embd", "d_model")

    def error(self, message: str) -> CheckpointError:
        """An error about these fields, to be raised by the caller."""
        return CheckpointError(f"{self.where}: {message}")

    def _kind(self, kind: type[Any], called: str, names: tuple[str, ...]) -> Any:
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, kind):
                    raise self.error(f"{name} must be {called}, found {value!r:.80}")
                return value
        return None
