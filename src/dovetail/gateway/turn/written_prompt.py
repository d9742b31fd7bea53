"""A request's whole prompt: its history repaired, and rendered with the tokens of the answers that have a record."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dovetail.errors import DovetailError
from dovetail.formats.base import Format, Messages
from dovetail.formats.prompts import piece_spans
from dovetail.formats.prompts.answer_frames import Frames
from dovetail.formats.prompts.history import Repair
from dovetail.formats.prompts.splicing import Incomplete, Spelling, Splice
from dovetail.gateway.turn.prompt import fitted, render_prompt
from dovetail.gateway.turn.turn_request import FIELD_OF_OPTION, TurnRequest
from dovetail.tokens import Prompt

#: The longest template options, as JSON, whose frames are remembered.
_LONGEST_OPTIONS = 1_000
_SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
_TOOLS = [{"type": "function", "function": {"name": "x", "description": "x", "parameters": _SCHEMA}}]
_NONE: Mapping[int, Spelling] = MappingProxyType({})


class WrittenPrompt(NamedTuple):
    """A prompt, the repairs of its history, and the answers that it has by their own tokens, by message.

    `last_role`: the role of the last message after the repairs.
    """

    prompt: Prompt
    repairs: list[Repair]
    answers: Mapping[int, Spelling]
    last_role: str | None = None


def written_prompt(
    request: TurnRequest, fmt: Format, answers: Mapping[int, Spelling], off: Iterable[str]
) -> WrittenPrompt:
    """The prompt of `request`. `answers`: those that may go into it by their own tokens. `off`: repairs to leave out.

    Raises what `render_prompt` raises, and `InvalidRequest` for a history that cannot be repaired.
    """
    off = frozenset(off)
    for _ in range(2):
        if not answers:
            break
        try:
            return _spliced(request, fmt, answers, off)
        except Incomplete as incomplete:
            answers = {i: answer for i, answer in answers.items() if i not in incomplete.messages}
        except DovetailError:
            break  # perhaps the template refuses a mark; if not, the prompt without marks raises this again
    with request.trace.stage("repair"):
        messages, repairs = fmt.repair(request.messages, request.tools, off=off)
    with request.trace.stage("render"):
        return WrittenPrompt(render_prompt(request, fmt, messages), repairs, _NONE, _last_role(messages))


def _spliced(request: TurnRequest, fmt: Format, answers: Mapping[int, Spelling], off: frozenset[str]) -> WrittenPrompt:
    verbatim = {i: "".join(answer.pieces) for i, answer in answers.items()}
    with request.trace.stage("repair"):
        messages, repairs = fmt.repair(request.messages, request.tools, off=off, verbatim=verbatim)
    numbers = dict(zip(_assistants(request.messages), _assistants(messages), strict=True))
    splice = Splice(messages, {numbers[i]: answer for i, answer in answers.items()}, fmt.history_rules.reasoning_field)
    with request.trace.stage("render"):
        prompt = render_prompt(request, fmt, splice.messages)
    try:
        spliced = splice.spliced(prompt, answer_frames(request, fmt), continues=request.continue_final_message)
    except Incomplete as incomplete:
        raise Incomplete([i for i, number in numbers.items() if number in incomplete.messages]) from None
    return WrittenPrompt(spliced, repairs, answers, _last_role(messages))


def _last_role(messages: Messages) -> str | None:
    return messages[-1]["role"] if messages else None


def _assistants(messages: Messages) -> list[int]:
    """The numbers of the assistant's messages. A repair may join others, and change these numbers by that."""
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def answer_frames(request: TurnRequest, fmt: Format) -> Frames:
    """What the template writes around the answers of this request."""
    request = fitted(request, fmt)
    options = {
        option: value
        for option, value in request.template_options(fmt.template_options).items()
        if FIELD_OF_OPTION.get(option, "reasoning_effort") == "reasoning_effort"  # others may add messages at the end
    }
    key = json.dumps(options, sort_keys=True)
    frames = _frames if len(key) <= _LONGEST_OPTIONS else _frames.__wrapped__
    return frames(fmt, request.thinking, key, bool(request.tools))


@functools.lru_cache(32)
def _frames(fmt: Format, thinking: bool, options: str, with_tools: bool) -> Frames:
    """Frames of prompts with these template options, as JSON. Which tools there are does not matter."""
    tools = _TOOLS if with_tools else None
    decoded: dict[str, Any] = json.loads(options)

    def render(messages: Messages, opens: bool) -> Prompt:
        return fmt.render(messages, tools, thinking=thinking, add_generation_prompt=opens, **decoded)

    return Frames(render, fmt.history_rules)


def opening_of(request: TurnRequest, fmt: Format, written: WrittenPrompt) -> list[str]:
    """The pieces of the generation prompt at the end of a prompt; [] if it is not what the last message calls for."""
    opening = answer_frames(request, fmt).opening(written.last_role)
    pieces = piece_spans.whole(written.prompt.pieces)
    return opening if opening and piece_spans.begin_of_span(pieces, opening, piece_spans.end_of(pieces)) else []
