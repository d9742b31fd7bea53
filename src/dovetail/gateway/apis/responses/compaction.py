"""Compaction: the model summarizes a conversation, and a sealed summary takes the place of what it has said so far.

A request asks for it by the path `/v1/responses/compact`, or by a `compaction_trigger` as its last item. The summary
comes as a `compaction` item, which a client sends back in later requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail.events import Content, Event, fold
from dovetail.gateway.apis.responses import items
from dovetail.gateway.apis.responses.output import StreamEvent
from dovetail.gateway.turn.logprobs import ContentLogprob
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn_request import TurnRequest

TRIGGER = "compaction_trigger"
#: The types of items that have a sealed summary. Codex knows all three.
SUMMARIES = ("compaction", "compaction_summary", "context_compaction")

#: The most tokens of a summary whose request sets no limit; a conversation that leaves less room loses its oldest
#: messages.
MAX_TOKENS = 8_192

_TASK = """\
This conversation will now be replaced by a summary, and you will go on from that summary and from the user's own \
messages alone. Write the summary. Say what the user wants, with every requirement; what has been done and found, with \
the files, commands, values and errors that matter; what was decided and why; and what remains to be done, the next \
step first. Copy exactly what must not change. Call no tool, and write nothing but the summary."""
_SUMMARY = "Summary of the conversation up to here, which replaces your own messages and the results of tools:\n\n{}"
_FOREIGN = "[A summary of the conversation up to here is left out: this server did not make it and cannot read it.]"


def shown(summary: str | None) -> str:
    """The message of the user with a `summary`; None: with one that cannot be read."""
    return _FOREIGN if summary is None else _SUMMARY.format(summary)


def asking(turn: TurnRequest) -> TurnRequest:
    """`turn` with the task of summarizing at its end. Its prompt begins as before, so an engine's cache has it."""
    limit = turn.max_tokens or MAX_TOKENS
    return msgspec.structs.replace(
        turn,
        messages=[*turn.messages, {"role": "user", "content": _TASK}],
        tool_choice="none" if turn.tools else None,
        response_format=None,
        reasoning_budget=limit // 2,
        max_tokens=limit,
        max_tokens_field=turn.max_tokens_field if turn.max_tokens else "",
        truncate=2,  # without a message before the task, there is nothing to summarize
        logprobs=None,
    )


def summary_of(steps: Iterable[Step]) -> str:
    """The summary in the steps of an answer; "" if the model wrote none."""
    return fold(event for step in steps for event in step.events).content.strip()


class CompactionOutput:
    """The output of a compaction, with the methods of `Output`: one item, whatever the model writes."""

    def __init__(self, response_id: str) -> None:
        self._id = f"cmp_{response_id}_0"
        self._began = False
        self.items: tuple[items.Item, ...] = ()

    def feed(self, events: Iterable[Event], logprobs: tuple[ContentLogprob, ...] = ()) -> list[StreamEvent]:
        if self._began or not any(isinstance(event, Content) for event in events):
            return []
        self._began = True
        return [{"type": "response.output_item.added", "output_index": 0, "item": items.Compaction(self._id, "")}]

    def finish(self, *, complete: bool, record: str = "") -> list[StreamEvent]:
        """`record`: the sealed summary."""
        item = items.Compaction(self._id, record)
        self.items = (item,)
        return [{"type": "response.output_item.done", "output_index": 0, "item": item}]


class Compacted(msgspec.Struct, frozen=True):
    """The body of a response to `/v1/responses/compact`: the user's messages as they were, and the summary."""

    id: str
    created_at: int
    output: list[Any]
    usage: Any
    object: str = "response.compaction"
