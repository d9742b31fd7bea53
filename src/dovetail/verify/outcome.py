"""The results of cases, as plain data: what was found, whom it is blamed on, and what could not be tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

#: The step that failed. prompt: from the request to token ids. draft: verification of draft tokens. reader: from token
#: ids to the response, its stream and its usage. schema: the constraint of a request. model: the choice of tokens.
Step = Literal["prompt", "draft", "reader", "schema", "model"]
STEPS: tuple[Step, ...] = ("prompt", "draft", "reader", "schema", "model")


class Failure(msgspec.Struct, frozen=True):
    """One fault of one case. `evidence`: what was seen, and why the step is blamed, in sentences."""

    suite: str
    case: str
    step: Step
    evidence: str


class Untested(msgspec.Struct, frozen=True):
    """Why a suite, or some of its cases, could not be tested."""

    suite: str
    because: str
    blocking: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The result of one run of one case.

    `endpoint`: 0 for the endpoint, 1 for the one beside it. `run`: the number of the run, from 0.
    `conversation`: cases of one conversation depend on each other, and statistics draw them together.
    `untested`: why there is no result; None if there is one.
    `measures`: numbers and words for the suite's figures.
    """

    endpoint: int
    suite: str
    case: str
    run: int
    conversation: str
    failures: tuple[Failure, ...] = ()
    untested: Untested | None = None
    measures: Mapping[str, Any] = {}

    @property
    def key(self) -> tuple[int, str, str, int]:
        return self.endpoint, self.suite, self.case, self.run

    @property
    def passed(self) -> bool:
        return self.untested is None and not self.failures
