"""What is checked of every answer, whatever was asked: its shape, its ids, its arguments, and what it leaks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from dovetail.client.endpoint import Exchange, Target
from dovetail.reading import MALFORMED
from dovetail.verify.language import Language
from dovetail.verify.suites.base import Finding


async def audited(target: Target, language: Language) -> list[Finding]:
    """The findings of every exchange of a case."""
    findings: list[Finding] = []
    for exchange in target.exchanges:
        if exchange.answer.error is None:
            findings += _plain(exchange, language)
            findings += await _in_our_language(target, exchange, language)
    return findings


def _plain(exchange: Exchange, language: Language) -> Iterator[Finding]:
    for fault in exchange.answer.faults:
        yield Finding(fault, "reader", exchange, decided=True)
    yield from _leaks(exchange, language)
    yield from _arguments(exchange)
    yield from _call_ids(exchange, language)


def _leaks(exchange: Exchange, language: Language) -> Iterator[Finding]:
    message = exchange.answer.message
    texts = [("content", message.content), ("reasoning", message.reasoning)]
    texts += [(f"the arguments of call {i}", call.arguments) for i, call in enumerate(message.calls)]
    for where, text in texts:
        leaked = next((marker for marker in language.markers if marker in text), None)
        if leaked is not None:
            yield Finding(f"{where} has the marker {leaked}", "reader", exchange, "model")


def _arguments(exchange: Exchange) -> Iterator[Finding]:
    if exchange.answer.cut_off:
        return
    for i, call in enumerate(exchange.answer.message.calls):
        if not is_json_object(call.arguments):
            what = f"the arguments of call {i} are no JSON object: {call.arguments:.80}"
            yield Finding(what, "reader", exchange, "model")


def is_json_object(text: str) -> bool:
    """Whether `text` is arguments, and not what a reader writes in place of those that it cannot read."""
    try:
        value = json.loads(text)
        return isinstance(value, dict) and MALFORMED not in value
    except (ValueError, RecursionError):
        return False


def _call_ids(exchange: Exchange, language: Language) -> Iterator[Finding]:
    """Ids of the form that the model was trained on, and none that the history has."""
    earlier = {
        call.get("id") for message in exchange.request.get("messages", ()) for call in message.get("tool_calls") or ()
    }
    for call in exchange.answer.message.calls:
        if call.id in earlier:
            yield Finding(f"the id {call.id!r} is in the history", "reader", exchange, "model")
        if not call.id:
            yield Finding(f"the call of {call.name!r} has no id", "reader", exchange, decided=True)
        elif not _trained(call.id, call.name, language):
            what = f"the id {call.id!r} has not the form that the model was trained on"
            yield Finding(what, "reader", exchange, "model")


def _trained(call_id: str, name: str, language: Language) -> bool:
    rule = language.format.history_rules.call_id if language.format is not None else None
    if rule is None:
        return True
    number = re.search(r"\d+$", call_id)
    return number is not None and call_id == rule(name, int(number[0]))


async def _in_our_language(target: Target, exchange: Exchange, language: Language) -> list[Finding]:
    """What our own prompt and our own reading show directly."""
    findings = []
    if prompt := await language.prompt_difference(target.endpoint, exchange):
        findings.append(Finding(f"the prompt is not the model's: {prompt}", "prompt", exchange, decided=True))
    if reading := await language.reading_difference(target.endpoint, exchange):
        what = f"the answer is not what its tokens say: {reading}"
        findings.append(Finding(what, "reader", exchange, decided=True))
    return findings
