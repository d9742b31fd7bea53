"""The model's language as Dovetail knows it: our own prompt for a request, and our own reading of an answer's tokens.

Both need the name of a format or a checkpoint (`--format`, `--model`), and an endpoint that returns token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from dovetail.client.endpoint import Endpoint, Exchange
from dovetail.client.not_tested import NotTested
from dovetail.client.statistics import common
from dovetail.errors import DovetailError
from dovetail.events import Message, fold
from dovetail.formats.base import Format
from dovetail.formats.turn import Turn
from dovetail.tokens import Prompt, Tokenizer
from dovetail.verify.probe import detokenized, prompt_ids

_AROUND = 40  # characters shown on each side of a difference
_OFF = ("none", "disabled")


#: Fields with which a raw completion reads and shows control tokens by their literals: vLLM's and SGLang's, and also
#: Dovetail's, if the endpoint does not refuse that one.
_LITERALS: Mapping[str, Any] = {"skip_special_tokens": False, "add_special_tokens": False}
_RAW: tuple[Mapping[str, Any], ...] = ({**_LITERALS, "dovetail": {"control_tokens": True}}, _LITERALS)


class Completed(NamedTuple):
    """How an endpoint's prompt and its reading of an answer differ from ours; "" where they do not."""

    prompt: str
    reading: str


class Compared(NamedTuple):
    """The step whose work differs from ours, None if none does, and how it differs.

    `read`: whether the answer's tokens or its raw text could be read. If not, `why` says what is missing.
    """

    step: Literal["prompt", "reader"] | None
    why: str
    read: bool


class Language(msgspec.Struct, frozen=True):
    """`format`, `tokenizer`: of the model that the endpoint should serve, as far as they are known."""

    format: Format | None = None
    tokenizer: Tokenizer | None = None

    async def text(self, endpoint: Endpoint, ids: Sequence[int] | None) -> str | None:
        """The text of token ids, with control tokens as their literals; None if it cannot be had."""
        if ids is None:
            return None
        if self.tokenizer is not None:
            return self.tokenizer.decode(ids)
        if not endpoint.features.detokenizes:
            return None
        try:
            return await detokenized(endpoint, tuple(ids))
        except NotTested:
            return None

    def prompt(self, request: Mapping[str, Any]) -> Prompt | None:
        """Our prompt for a request; None without a format, or if the format cannot write it."""
        if self.format is None:
            return None
        tools = request.get("tools")
        try:
            messages, _ = self.format.repair(request.get("messages") or (), tools)
            return self.format.render(messages, tools, thinking=thinks(request))
        except DovetailError:
            return None

    async def prompt_difference(self, endpoint: Endpoint, exchange: Exchange) -> str | None:
        """Where the endpoint's prompt first differs from ours; "" if it does not; None if that cannot be known."""
        ours = self.prompt(exchange.request)
        ids = None if ours is None else await prompt_ids(endpoint, exchange)
        if ours is None or ids is None:
            return None
        if self.tokenizer is not None and list(ids) == ours.ids(self.tokenizer):
            return ""
        theirs = await self.text(endpoint, ids)
        if theirs is None:
            return None
        if theirs != ours.text:
            return first_difference(ours.text, theirs)
        return "" if self.tokenizer is None else _token_difference(self.tokenizer, ours.ids(self.tokenizer), ids)

    async def reading(self, endpoint: Endpoint, exchange: Exchange) -> Message | None:
        """What our reader makes of the answer's tokens; None if that cannot be known."""
        answer = exchange.answer
        text = await self.text(endpoint, answer.ids)
        thinking = await self._thinking(endpoint, answer.prompt_ids)
        if self.format is None or thinking is None or text is None:
            return None
        reader = _turn(self.format, exchange.request, left_open=thinking).reader(self.tokenizer)
        fed = reader.feed(text) if self.tokenizer is None else reader.feed("", answer.ids)
        return fold([*fed, *reader.finish("length" if answer.cut_off else "stop")])

    async def _thinking(self, endpoint: Endpoint, prompt_ids: Sequence[int] | None) -> bool | None:
        """Whether the endpoint's own prompt, right or wrong, ends inside a reasoning block."""
        if self.format is None or prompt_ids is None:
            return None
        if self.tokenizer is not None:
            return self.format.left_open(Prompt.alternating(self.tokenizer.pieces(prompt_ids)))
        text = await self.text(endpoint, prompt_ids)
        if text is None:
            return None
        opener, closer = self.format.reader_type.think.strip(), self.format.reader_type.think_end.strip()
        ends = [text.rfind(literal) for literal in (closer, *self.format.end_of_turn) if literal]
        return bool(opener) and text.rfind(opener) > max(ends, default=-1)

    async def reading_difference(self, endpoint: Endpoint, exchange: Exchange) -> str | None:
        """How the answer differs from our reading of its tokens; "" if it does not; None if that cannot be known."""
        ours = await self.reading(endpoint, exchange)
        if ours is None:
            return None
        return message_difference(ours, exchange.answer.message, ids=self.trained_ids)

    async def compared(self, endpoint: Endpoint, exchange: Exchange) -> Compared:
        """Whether prompt or reader of an exchange differ from ours."""
        if prompt := await self.prompt_difference(endpoint, exchange):
            return Compared("prompt", f"the prompt is not the model's: {prompt}", True)
        reading = await self.reading_difference(endpoint, exchange)
        if reading:
            return Compared("reader", f"the answer is not what its tokens say: {reading}", True)
        completed = None if reading is not None else await self.completed(endpoint, exchange)
        if completed and completed.prompt:
            return Compared("prompt", completed.prompt, True)
        if completed and completed.reading:
            why = f"the answer is not what /v1/completions writes for the same prompt: {completed.reading}"
            return Compared("reader", why, True)
        if reading is not None or completed is not None:
            return Compared(None, "", True)
        no_ids = exchange.answer.ids is None
        missing = "the endpoint returns no token ids" if no_ids else "give the model's --format or --model"
        return Compared(None, f"whether the reader is at fault is not known: {missing}", False)

    async def completed(self, endpoint: Endpoint, exchange: Exchange) -> Completed | None:
        """What /v1/completions shows of an endpoint that returns no token ids; None if it shows nothing.

        It continues our own prompt. By the endpoint's count that prompt has as many tokens as its own, or its own is
        another one; and the raw text, read by our reader, is the answer, or its reader is at fault.
        """
        ours = self.prompt(exchange.request)
        counted = (exchange.answer.usage or {}).get("prompt_tokens")
        if self.format is None or ours is None or not endpoint.features.fields or not isinstance(counted, int):
            return None  # answers that cannot be repeated, or prompts that are not counted, cannot be compared
        for fields in _RAW:
            body = {**endpoint.features.fields, "max_tokens": exchange.request.get("max_tokens"), **fields}
            try:
                reply = await endpoint.send(
                    "POST", "/v1/completions", {"model": endpoint.model, "prompt": ours.text, **body}
                )
                page = json.loads(reply.body) if reply.status == 200 else None
                if page is not None:
                    text, tokens = page["choices"][0]["text"], page["usage"]["prompt_tokens"]
                    break
            except (NotTested, ValueError, LookupError, TypeError):
                return None
        else:
            return None
        if tokens != counted:
            return Completed(f"by its own count its prompt has {counted} tokens, and ours {tokens}", "")
        turn = _turn(self.format, exchange.request, prompt=ours)
        message = turn.parse(text, reason="length" if exchange.answer.cut_off else "stop")
        return Completed("", message_difference(message, exchange.answer.message, ids=self.trained_ids))

    @property
    def trained_ids(self) -> bool:
        """Whether the model was trained on call ids of a form of its own."""
        return self.format is not None and self.format.history_rules.call_id is not None

    @property
    def markers(self) -> tuple[str, ...]:
        """The literals that must never be in a message; without a format, the literals of many families."""
        if self.format is None:
            return _MARKERS
        return tuple(literal for literal in self.format.reader_type.controls if len(literal) > 3)


_MARKERS = (
    "<|tool_call",
    "<|im_",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<｜",
    "｜DSML｜",
    "[TOOL_CALLS]",
    "<|channel|>",
    "<|python_tag|>",
    "<minimax:tool_call>",
)


def _turn(fmt: Format, request: Mapping[str, Any], **known: Any) -> Turn:
    """The turn of a request in `fmt`. `known`: its prompt, or whether that leaves reasoning open."""
    fields = {name: request[name] for name in ("tools", "tool_choice", "response_format") if name in request}
    return Turn(fmt, **fields, **known)


def thinks(request: Mapping[str, Any]) -> bool:
    """Whether a request leaves reasoning on, by any of the fields with which clients turn it off."""
    options = request.get("chat_template_kwargs") or {}
    thinking = request.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, Mapping) else thinking
    switches = (options.get("thinking"), options.get("enable_thinking"), request.get("enable_thinking"), kind)
    return not (request.get("reasoning_effort") in _OFF or any(each is False or each in _OFF for each in switches))


def first_difference(ours: str, theirs: str, names: tuple[str, str] = ("ours", "the endpoint's")) -> str:
    """The place where two texts begin to differ, with what is around it."""
    at = common(ours, theirs)
    around = slice(max(at - _AROUND, 0), at + _AROUND)
    return f"at character {at}: {names[0]} {ours[around]!r}, {names[1]} {theirs[around]!r}"


def _token_difference(tokenizer: Tokenizer, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Where different tokens of one text differ, as they do where a user's text became a control token."""
    at = common(ours, theirs)
    shown = [tokenizer.decode(ids[at : at + 8]) for ids in (ours, theirs)]
    literal = tokenizer.control_literals.get(theirs[at]) if at < len(theirs) else None
    control = "" if literal is None else f", where it has the control token {literal}"
    difference = f"ours {shown[0]!r}, the endpoint's {shown[1]!r}{control}"
    return f"the texts are equal and the tokens differ at token {at}: {difference}"


def message_difference(ours: Message, theirs: Message, *, ids: bool, names: tuple[str, str] = ("ours", "it")) -> str:
    """The first part in which two messages differ; "" if in none. White space around texts does not count.

    `ids`: whether the ids of calls count. Arguments are compared as JSON values where they parse.
    """
    if len(ours.calls) != len(theirs.calls):
        return f"{names[0]} has {len(ours.calls)} calls, {names[1]} {len(theirs.calls)}"
    for i, (a, b) in enumerate(zip(ours.calls, theirs.calls, strict=True)):
        if a.name != b.name:
            return f"call {i}: {names[0]} names {a.name!r}, {names[1]} {b.name!r}"
        if _value(a.arguments) != _value(b.arguments):
            return f"arguments of call {i}: {first_difference(a.arguments, b.arguments, names)}"
        if ids and a.id != b.id:
            return f"id of call {i}: {names[0]} {a.id!r}, {names[1]} {b.id!r}"
    for part in ("content", "reasoning"):
        a_text, b_text = getattr(ours, part).strip(), getattr(theirs, part).strip()
        if a_text != b_text:
            return f"{part} {first_difference(a_text, b_text, names)}"
    return ""


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
