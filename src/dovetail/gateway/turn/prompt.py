"""A request's whole prompt: its history repaired, and rendered with the tokens of the answers that have a record."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dovetail.errors import DovetailError, InvalidRequest
from dovetail.formats.base import Format, Messages
from dovetail.formats.efforts import nearest_effort
from dovetail.formats.prompts import piece_spans
from dovetail.formats.prompts.answer_frames import Frames
from dovetail.formats.prompts.history import BILLING_LINE, Repair
from dovetail.formats.prompts.splicing import Incomplete, Spelling, Splice
from dovetail.gateway.turn.tools import shows_tools
from dovetail.gateway.turn.turn_request import FIELD_OF_OPTION, FieldNames, TurnRequest
from dovetail.tokens import Prompt


def render_prompt(request: TurnRequest, fmt: Format, messages: Messages) -> Prompt:
    """The prompt of `request`. `messages` are the request's own after repair.

    Raises `InvalidRequest`, also for tools that the template would drop in silence, and `RenderError`.
    """
    request = fitted(request, fmt)
    try:
        prompt = fmt.render(
            messages,
            request.tools,
            thinking=request.thinking,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            **request.template_options(fmt.template_options),
        )
    except InvalidRequest as error:
        option = (error.param or "").removeprefix("chat_template_kwargs.")
        if option in FIELD_OF_OPTION and option not in request.chat_template_kwargs:
            error.param = FIELD_OF_OPTION[option]  # the client sent it as a field of its own
        raise
    if request.tools and request.tool_choice != "none" and not shows_tools(fmt):
        raise InvalidRequest(
            "the model's chat template does not show tools: leave them out, or serve the model from a folder whose "
            "chat_template.jinja has them",
            param="tools",
        )
    return prompt


def fitted(request: TurnRequest, fmt: Format) -> TurnRequest:
    """`request` with a reasoning effort that the format knows, if it asks for the nearest one."""
    if not request.fit_reasoning_effort:
        return request
    effort = nearest_effort(request.reasoning_effort, fmt.efforts)
    return msgspec.structs.replace(request, reasoning_effort=effort)


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
    for _ in range(3):  # for answers that a repair joins with others, and then for those that the prompt hides
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
        messages, repairs, places = fmt.repaired(request.messages, request.tools, off=off, verbatim=verbatim)
    alone = {place: answers[i] for i in answers if (place := places[i]) is not None}
    if len(alone) < len(answers):
        raise Incomplete([i for i in answers if places[i] is None])
    splice = Splice(messages, alone, fmt.history_rules.reasoning_field)
    with request.trace.stage("render"):
        prompt = render_prompt(request, fmt, splice.messages)
    try:
        spliced = splice.spliced(prompt, answer_frames(request, fmt), continues=request.continue_final_message)
    except Incomplete as incomplete:
        raise Incomplete([i for i in answers if places[i] in incomplete.messages]) from None
    return WrittenPrompt(spliced, repairs, answers, _last_role(messages))


def _last_role(messages: Messages) -> str | None:
    return messages[-1]["role"] if messages else None


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


_MESSAGE = re.compile(r"messages\[(\d+)\]")


def new_repairs(repairs: Sequence[Repair], messages: Sequence[Mapping[str, Any]]) -> list[Repair]:
    """Those of `repairs` that are in the last message of the assistant or after it, or in no message at all.

    The client got that message in the turn before, so it has come back for the first time.
    """
    last = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"), 0)
    places = (_MESSAGE.match(repair.where) for repair in repairs)
    return [repair for repair, place in zip(repairs, places, strict=True) if place is None or int(place[1]) >= last]


_INSTRUCTIONS = ("system", "developer")
#: Claude Code's line that describes its version: rendered, it would spoil every cached prompt.
_BILLING = re.compile(r"^x-anthropic-billing-header:.*\n*", re.MULTILINE)


def without_billing_lines(request: TurnRequest, off: Container[str]) -> TurnRequest:
    """`request` without the lines of its system texts that are for the vendor's own server."""
    if BILLING_LINE in off:
        return request
    changed: dict[int, str] = {}
    for i, message in enumerate(request.messages):
        content = message.get("content")
        if message["role"] in _INSTRUCTIONS and isinstance(content, str):
            text = _BILLING.sub("", content)
            if text != content:
                changed[i] = text
    if not changed:
        return request
    empty = [i for i, text in changed.items() if not text.strip()]
    where = ("messages" if not changed[i].strip() else f"messages[{i}].content" for i in changed)
    messages = [{**m, "content": changed[i]} if i in changed else m for i, m in enumerate(request.messages)]
    repairs = (*(Repair(BILLING_LINE, each) for each in where), *request.remedies)
    return _without(msgspec.structs.replace(request, messages=messages, remedies=repairs), empty)


def truncated(request: TurnRequest, fits: Callable[[TurnRequest], bool]) -> TurnRequest:
    """`request` without as few of its oldest messages as make it fit, or without all but the last ones.

    `request.truncate` of the last messages, at least one, and the system messages at the beginning stay. Results stay
    with their calls. What is dropped is in `omitted`.
    """
    if fits(request):
        return request
    first = next((i for i, message in enumerate(request.messages) if message["role"] not in _INSTRUCTIONS), 0)
    ends = _ends(request.messages, first, len(request.messages) - max(1, request.truncate))
    if not ends:
        return request
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(_without(request, range(first, ends[middle]))):
            high = middle
        else:
            low = middle + 1
    return _without(request, range(first, ends[low]))


def _ends(messages: Sequence[Any], first: int, last: int) -> list[int]:
    """Where what is dropped, which begins at `first`, may end, at `last` at the latest."""
    return [i for i in range(first + 1, last + 1) if messages[i]["role"] != "tool"]


def _without(request: TurnRequest, gone: Collection[int]) -> TurnRequest:
    """`request` without the messages of these numbers, and with the client's names of the others' fields."""
    if not gone:
        return request
    names, without = request.field_names, set(gone)
    kept = [i for i in range(len(request.messages)) if i not in without]
    return msgspec.structs.replace(
        request,
        messages=[request.messages[i] for i in kept],
        omitted=tuple(dict.fromkeys((*request.omitted, *(names.of(f"messages[{i}]") for i in sorted(without))))),
        field_names=FieldNames(dict(_renumbered(names.prefixes, {i: number for number, i in enumerate(kept)}))),
    )


def _renumbered(names: Mapping[str, str], numbers: Mapping[int, int]) -> Iterator[tuple[str, str]]:
    """`names` with the new `numbers` of messages, without the names in those that have none."""
    for path, name in names.items():
        message = _MESSAGE.match(path)
        if message is None:
            yield path, name
        elif (number := numbers.get(int(message[1]))) is not None:
            yield f"messages[{number}]{path[message.end() :]}", name
