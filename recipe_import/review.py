"""Reads `review.yaml`: what a person has checked of the source, and what the source does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dovetail.plan.recipe import Figure
from dovetail.plan.yaml_config import read_yaml

FILE = Path(__file__).with_name("review.yaml")


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Parsers(_Data, frozen=True):
    """A format by vLLM's parsers of calls and of reasoning, which a model's file names. `format` None: we have none."""

    calls: str | None
    reasoning: str | None
    format: str | None


class Published(Figure, frozen=True, forbid_unknown_fields=True):
    """A figure, and the recipes that it belongs to: of one `mode`, of one `variant`, or of all.

    `found`: how it is written in the model's file of the source, where that is where it is from.
    """

    mode: str | None = None
    variant: str | None = None
    found: str | None = None


class ModelReview(_Data, frozen=True):
    """What was checked of one model's file.

    `name`: of its recipes, in place of the file's. `format`: in place of what `Parsers` say. `by_hand`: the recipes
    that were written by hand, so that none is imported. `left_out`: mode -> why it is not imported.
    """

    name: str | None = None
    aliases: tuple[str, ...] = ()
    format: str | msgspec.UnsetType | None = msgspec.UNSET
    measured: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    left_out: Mapping[str, str] = {}


class Review(_Data, frozen=True):
    """`methods`: drafter -> its method, for drafters that the source names without one."""

    formats: tuple[Parsers, ...]
    methods: Mapping[str, str] = {}
    models: Mapping[str, ModelReview] = {}

    def format(self, calls: str | None, reasoning: str | None) -> str | None:
        """The format of models with these parsers. Raises `ValueError` for parsers that nobody has looked at."""
        for known in self.formats:
            if (known.calls, known.reasoning) == (calls, reasoning):
                return known.format
        raise ValueError(
            f"nobody has reviewed which format has the parsers {calls} (calls) and {reasoning} (reasoning)"
        )


def read(file: Path = FILE) -> Review:
    return msgspec.convert(read_yaml(file, "review"), Review)
