"""What the steps of an answer add up to, the same in every API: counts, token ids and the `dovetail` field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from dovetail.events import Defect
from dovetail.formats.prompts.history import Repair
from dovetail.gateway.turn.output import FinishReason, GuardKind, Step
from dovetail.gateway.turn.prefix import Prefix
from dovetail.gateway.turn.turn import PreparedTurn


class OutputDefect(msgspec.Struct, frozen=True):
    kind: str
    detail: str


class Extension(msgspec.Struct, frozen=True):
    """The response's `dovetail` field.

    `guards`: those that acted. `prefix`: where the prompt leaves the last one of its conversation, if it does.
    `earlier_repairs` counts the repairs that earlier turns reported, by kind.
    """

    defects: tuple[OutputDefect, ...] | UnsetType = UNSET
    guards: tuple[GuardKind, ...] | UnsetType = UNSET
    repairs: tuple[Repair, ...] | UnsetType = UNSET
    earlier_repairs: dict[str, int] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET
    record: str | UnsetType = UNSET
    prefix: Prefix | UnsetType = UNSET


class Speculation(msgspec.Struct, frozen=True):
    """The engine steps of this response, summed over its choices, and the draft tokens in them.

    `drafted` were verified, `accepted` of them were accepted, and `forced` of those verified came from the grammar and
    not from a drafter. An engine behind HTTP may send several steps at once, which count as one, and does not report
    `forced`.
    """

    steps: int
    drafted: int
    accepted: int
    forced: int


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """A part of the usage in OpenAI's APIs."""

    cached_tokens: int


class ChoiceTotals:
    """What the steps of one choice add up to."""

    def __init__(self, turn: PreparedTurn, choice: int = 0) -> None:
        self._turn = turn
        self._choice = choice
        self._prompt = turn.choices[choice].completion.prompt
        self._with_ids = bool(turn.request.extension.return_token_ids)
        self._with_record = bool(turn.request.extension.record)
        self.steps = self.accepted = self.forced = self.reasoning_tokens = 0
        #: None until the engine reports them.
        self.drafted: int | None = None
        self.cached: int | None = None
        self.ids: list[int] = []
        #: The tokens of the prompt. A picture is one token until the engine has told how many it takes.
        self.prompt_tokens = len(self._prompt)
        self._expanded = False
        self.finish: FinishReason | None = None
        self._defects: list[OutputDefect] = []
        self._guards: list[GuardKind] = []

    def add(self, step: Step) -> None:
        self.steps += 1
        self.drafted = _sum(self.drafted, step.drafted)
        self.accepted += step.accepted
        self.forced += step.forced
        self.reasoning_tokens += step.reasoning_tokens
        self.cached = _sum(self.cached, step.cached)
        self.finish = step.finish
        if step.prompt_tokens is not None and not self._expanded:  # a guard continues answers with another prompt
            self.prompt_tokens, self._expanded = step.prompt_tokens, True
        self.ids.extend(step.ids)
        self._guards += step.guards
        self._defects.extend(OutputDefect(e.kind, e.detail) for e in step.events if isinstance(e, Defect))

    def extension(self) -> Extension | UnsetType:
        extension = Extension(
            defects=tuple(self._defects) or UNSET,
            guards=tuple(self._guards) or UNSET,
            repairs=self._turn.new_repairs or UNSET,
            earlier_repairs=_earlier_repairs(self._turn) or UNSET,
            prompt_token_ids=self._prompt if self._with_ids else UNSET,
            token_ids=tuple(self.ids) if self._with_ids else UNSET,
            prefix=self._turn.prefix if self._turn.prefix is not None and self._turn.prefix.lost else UNSET,
            record=(self._with_record and self._turn.record(self._choice, self.ids)) or UNSET,
        )
        return UNSET if extension == Extension() else extension


def _earlier_repairs(turn: PreparedTurn) -> dict[str, int]:
    kinds = Counter(repair.kind for repair in turn.repairs)
    kinds.subtract(repair.kind for repair in turn.new_repairs)
    return dict(+kinds)


def speculation(choices: Sequence[ChoiceTotals]) -> Speculation | UnsetType:
    """The speculation of all `choices`; absent if the engine did not report it for each of them."""
    drafted = [choice.drafted for choice in choices if choice.drafted is not None]
    if len(drafted) < len(choices):
        return UNSET
    steps, accepted, forced = map(sum, zip(*((c.steps, c.accepted, c.forced) for c in choices), strict=True))
    return Speculation(steps, sum(drafted), accepted, forced)


def _sum(total: int | None, reported: int | None) -> int | None:
    return total if reported is None else (total or 0) + reported
