"""A file with the outcome of each finished case, so that a run that was stopped can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.client.run_file import RunFile
from dovetail.verify.outcome import Outcome
from dovetail.verify.suites.base import Suite

_OUTCOME = msgspec.json.Decoder(Outcome)


class Header(msgspec.Struct, frozen=True, tag="dovetail verify 2"):
    """The first line: what the outcomes are of. `cases`: a digest of the data of all suites, and of what answers are
    compared with and limited by."""

    urls: tuple[str, ...]
    models: tuple[str | None, ...]
    cases: str


def digest(suites: Sequence[Suite], beside: Any = ()) -> str:
    """A digest of the suites' names and cases, and of the names of what stands `beside` the endpoints."""
    content: Any = [(suite.name, suite.cases()) for suite in suites], beside
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


class Journal:
    """The outcomes of an earlier run in `file`, to which new ones are added. Without a file, nothing is written.

    Outcomes without a result are not taken over, so that those cases run again. Raises `InvalidRequest` for the file of
    another run.
    """

    def __init__(self, file: Path | None, header: Header) -> None:
        self._file = RunFile(
            file,
            header,
            "URLs, models, formats, token limits, cases or references",
            "choose another --keep folder, or remove it",
        )
        earlier = (outcome for outcome in self._file.results(_OUTCOME) if outcome.untested is None)
        self.outcomes: dict[tuple[int, str, str, int], Outcome] = {outcome.key: outcome for outcome in earlier}

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.key] = outcome
        self._file.add([outcome])
