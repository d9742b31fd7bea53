"""Suite `protocol`: the API's promises, on a few short conversations. Its cases are `data/protocol.json`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dovetail.client.endpoint import Exchange, Target
from dovetail.client.not_tested import NotTested
from dovetail.events import Message
from dovetail.verify.language import Language, message_difference
from dovetail.verify.probe import STREAM
from dovetail.verify.suites.audits import audited
from dovetail.verify.suites.base import (
    Case,
    Checked,
    Finding,
    Suite,
    endless_calls,
    load_cases,
    need_complete,
    prompt_tokens,
)

#: How often a request is sent again before an answer that differs is taken for a fault. A sampled answer, or a greedy
#: one beside other requests, may be the same twice by chance.
_REPEATS = 4
_Check = Callable[[Case, Target, Language], Awaitable[list[Finding]]]


class Protocol(Suite):
    name = "protocol"

    def cases(self) -> Sequence[Case]:
        return load_cases("protocol.json")

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        if "tools" in case.request and not target.features.tools:
            raise NotTested(target.features.because["tools"], blocking=False)
        if (case.check == "stream" or case.expect.get("stream")) and not target.features.streaming:
            raise NotTested(target.features.because["streaming"], blocking=False)
        findings = await _CHECKS[case.check](case, target, language)
        if case.check != "refused":  # an answer to a wrong request has no right form
            findings += await audited(target, language)
        return Checked(tuple(findings))


async def _stream(case: Case, target: Target, language: Language) -> list[Finding]:
    """The folded stream is the whole answer."""
    streamed = {**case.request, **STREAM}
    whole = await target.answer(case.request)
    stream = await target.answer(streamed)
    if not (difference := _difference(whole, stream)):
        return []
    same_ids = _same_ids(whole, stream)
    if not same_ids:
        if other := await _varies(target, case.request, whole):
            raise NotTested(
                f"the same request has two whole answers, so streams cannot be compared: {other}", blocking=False
            )
        # Greedy tokens are the same again, so that a stream that varies is the reader's doing.
        if not _greedy(target) and (other := await _varies(target, streamed, stream)):
            raise NotTested(f"the same request has two streams, so they cannot be compared: {other}", blocking=False)
    what = f"the stream differs from the whole answer: {difference}"
    return [Finding(what, "reader", stream, "model", decided=same_ids)]


async def _varies(target: Target, request: Mapping[str, Any], first: Exchange) -> str:
    """How one of `_REPEATS` further answers to `request` differs from the first; "" if none does."""
    for _ in range(_REPEATS):
        if other := _difference(first, await target.answer(request), ("first", "again")):
            return other
    return ""


def _greedy(target: Target) -> bool:
    return target.features.fields.get("temperature") == 0


def _difference(first: Exchange, second: Exchange, names: tuple[str, str] = ("whole", "streamed")) -> str:
    answers = first.answer, second.answer
    if answers[0].finish != answers[1].finish:
        return f"finish_reason {answers[0].finish!r} and {answers[1].finish!r}"
    messages: list[Message] = [answer.message for answer in answers]
    ids = _forms(messages[0]) != _forms(messages[1])
    difference = message_difference(messages[0], messages[1], ids=ids, names=names)
    if difference or not all(answer.usage for answer in answers):
        return difference
    usage = [[(answer.usage or {}).get(f"{part}_tokens") for part in ("prompt", "completion")] for answer in answers]
    return "" if usage[0] == usage[1] else f"usage {usage[0]} and {usage[1]}"


def _forms(message: Message) -> list[int]:
    """The lengths of the ids, which are equal in two answers even if the ids are random."""
    return [len(call.id) for call in message.calls]


def _same_ids(first: Exchange, second: Exchange) -> bool:
    """Whether both answers are known to have the same tokens."""
    return first.answer.ids is not None and first.answer.ids == second.answer.ids


async def _answers(case: Case, target: Target, language: Language) -> list[Finding]:
    """The answer is of the expected kind.

    `expect`: `calls` (least and most), `names` (of all calls), `finish` (one of these), `says` (a part of the content).
    """
    exchange = await target.answer({**case.request, **(STREAM if case.expect.get("stream") else {})})
    if exchange.answer.cut_off and "length" not in case.expect.get("finish", ()):
        if endless := endless_calls(exchange, 1):
            return endless
        need_complete(exchange)
    return [finding for each in (_calls, _names, _finish, _says) for finding in each(case.expect, exchange)]


def _calls(expect: Mapping[str, Any], exchange: Exchange) -> list[Finding]:
    if "calls" not in expect:
        return []
    (least, most), n = expect["calls"], len(exchange.answer.message.calls)
    if least <= n <= most:
        return []
    choice = exchange.request.get("tool_choice", "auto")
    enforced = choice != "auto" or (n > most and exchange.request.get("parallel_tool_calls") is False)
    what = f"{n} calls instead of {least} to {most} with tool_choice {choice!r}"
    return [Finding(what, "schema" if enforced else "reader", exchange, "schema" if enforced else "model")]


def _names(expect: Mapping[str, Any], exchange: Exchange) -> list[Finding]:
    called = [call.name for call in exchange.answer.message.calls]
    wrong = [name for name in called if name not in expect.get("names", called)]
    if not wrong:
        return []
    step: Any = "schema" if exchange.request.get("tool_choice") not in (None, "auto") else "model"
    return [Finding(f"{wrong[0]!r} is called, which is not one of {expect['names']}", step, exchange)]


def _finish(expect: Mapping[str, Any], exchange: Exchange) -> list[Finding]:
    answer = exchange.answer
    if "finish" not in expect or answer.finish in expect["finish"]:
        return []
    if not answer.message.calls and expect.get("calls", (0,))[0]:
        return []  # that there is no call is a finding already
    what = f"finish_reason is {answer.finish!r} and not {' or '.join(expect['finish'])}"
    # Without calls the model itself may have stopped.
    return [Finding(what, "reader", exchange, "reader" if answer.message.calls else "model")]


def _says(expect: Mapping[str, Any], exchange: Exchange) -> list[Finding]:
    message = exchange.answer.message
    if "says" not in expect or (message.content.strip() if expect["says"] == "" else expect["says"] in message.content):
        return []
    return [
        Finding(f"the content is {message.content[:80]!r}, without {expect['says']!r}", "reader", exchange, "model")
    ]


async def _same_prompt(case: Case, target: Target, language: Language) -> list[Finding]:
    """Two ways to write a history make one prompt. `expect`: `request`, the other way; `trained_ids`: only for models
    that were trained on ids of their own."""
    if case.expect.get("trained_ids") and not language.trained_ids:
        await target.answer(case.request)  # it must be taken nevertheless
        return []
    first = await target.answer({**case.request, "max_tokens": 1})
    second = await target.answer({**case.request, **case.expect["request"], "max_tokens": 1})
    ids = first.answer.prompt_ids, second.answer.prompt_ids
    counts = [(exchange.answer.usage or {}).get("prompt_tokens") for exchange in (first, second)]
    if ids[0] == ids[1] if None not in ids else counts[0] == counts[1]:
        return []
    what = f"{case.expect['what']}: prompts of {counts[0]} and {counts[1]} tokens"
    return [Finding(what, "prompt", first, decided=True)]


async def _in_the_prompt(case: Case, target: Target, language: Language) -> list[Finding]:
    """What a request has more of, its prompt has more of too. `expect`: `request`, with more; `tokens`, the least."""
    less = await target.answer({**case.request, "max_tokens": 1})
    more = await target.answer({**case.request, **case.expect["request"], "max_tokens": 1})
    counts = [prompt_tokens(exchange) for exchange in (less, more)]
    if counts[1] >= counts[0] + case.expect["tokens"] or await language.prompt_difference(target.endpoint, more) == "":
        return []  # a prompt that is ours leaves out what the model's own template leaves out
    what = (
        f"{case.expect['what']} is not in the prompt, which has {counts[0]} tokens without it and {counts[1]} with it"
    )
    return [Finding(what, "prompt", more, decided=True)]


async def _refused(case: Case, target: Target, language: Language) -> list[Finding]:
    """A wrong request is refused with a status from 400 to 499, and an error of OpenAI's shape."""
    exchange = await target.chat({**case.request, "max_tokens": 1})
    answer = exchange.answer
    if answer.error is None:
        return [Finding(f"{case.expect['what']} is answered and not refused", "prompt", exchange, decided=True)]
    if not answer.error_shape:
        return [Finding(f"the error has not OpenAI's shape: {answer.raw:.80}", "prompt", exchange, decided=True)]
    return []


#: Ways to turn reasoning off, of which an endpoint knows some.
_OFF: tuple[Mapping[str, Any], ...] = (
    {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"thinking": {"type": "disabled"}},
    {"reasoning_effort": "none"},
)


async def _reasoning_switch(case: Case, target: Target, language: Language) -> list[Finding]:
    """Reasoning that is there by default is gone when it is turned off."""
    on = await target.answer(case.request)
    if not on.answer.message.reasoning:
        raise NotTested("its answers have no reasoning that could be turned off", blocking=False)
    for fields in _OFF:
        off = await target.chat({**case.request, **fields})
        if off.answer.error is None and not off.answer.message.reasoning:
            return []
    if off.answer.error is not None:
        raise NotTested(f"it knows no way to turn reasoning off: {off.answer.error}", blocking=False)
    return [Finding("reasoning that is turned off is there", "prompt", off, "model")]


async def _together(case: Case, target: Target, language: Language) -> list[Finding]:
    """Several requests at the same time have the answers of requests on their own."""
    alone = await target.answer(case.request)
    crowd = await asyncio.gather(*(target.answer(case.request) for _ in range(3)))
    for exchange in crowd:
        if difference := _difference(alone, exchange, ("alone", "beside others")):
            if await _varies(target, case.request, alone):
                raise NotTested("the same request has two answers, so that a crowd proves nothing", blocking=False)
            return [Finding(f"beside other requests the answer differs: {difference}", "model", exchange)]
    return []


_CHECKS: Mapping[str, _Check] = {
    "stream": _stream,
    "answers": _answers,
    "same_prompt": _same_prompt,
    "in_the_prompt": _in_the_prompt,
    "refused": _refused,
    "reasoning_switch": _reasoning_switch,
    "together": _together,
}
