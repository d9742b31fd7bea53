"""`dovetail explain A --diff B`: where two recordings begin to differ, from the request to the message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dovetail.client.statistics import common
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import RecordedPrompt, Recording, Token

#: Tokens that are shown before the first one that differs.
_CONTEXT = 8


class Difference(msgspec.Struct, frozen=True):
    """One difference: where it is, and what each recording has there."""

    where: str
    first: str
    second: str


def differences(first: Recording, second: Recording) -> list[Difference]:
    """The differences of two recordings in the order of a request: of each part only the first one.

    Ids of answers and times do not count, and neither do token ids of different tokenizers. Raises `InvalidRequest` for
    requests that are nested too deeply.
    """
    try:
        return _differences(first, second)
    except RecursionError as error:
        raise InvalidRequest("the recorded requests are nested too deeply to be compared") from error


def _differences(first: Recording, second: Recording) -> list[Difference]:
    if _tokenizer(first) != _tokenizer(second):
        # The same id is another text in each, so texts are compared.
        first, second = _without_ids(first), _without_ids(second)
    return [
        *_fields("tokenizer", _tokenizer(first), _tokenizer(second)),
        *_fields("request", _decoded(first), _decoded(second)),
        *_fields("repairs", _repairs(first), _repairs(second)),
        *_fields("options", msgspec.to_builtins(first.options), msgspec.to_builtins(second.options)),
        *_prompt(first, second),
        *_fields("pictures", *([picture.sha256 for picture in each.pictures] for each in (first, second))),
        *_fields("grammar", first.grammar, second.grammar),
        *_answers(first, second),
        *_fields("error", msgspec.to_builtins(first.error), msgspec.to_builtins(second.error)),
    ]


def _tokenizer(recording: Recording) -> str | None:
    return None if recording.tokenizer is None else recording.tokenizer.digest


def _without_ids(recording: Recording) -> Recording:
    """`recording` with texts alone, and without a prompt's ids."""
    steps = tuple(
        msgspec.structs.replace(step, tokens=tuple(Token(None, token.text, token.control) for token in step.tokens))
        for step in recording.steps
    )
    prompt = None if recording.prompt is None else msgspec.structs.replace(recording.prompt, ids=None)
    return msgspec.structs.replace(recording, steps=steps, prompt=prompt)


def _decoded(recording: Recording) -> Any:
    return msgspec.json.decode(recording.request)


def _repairs(recording: Recording) -> list[list[str]]:
    return [[repair.kind, repair.where, repair.detail] for repair in recording.repairs]


def _fields(where: str, first: Any, second: Any) -> Iterator[Difference]:
    """The differences of two JSON values: one for each field of objects, the first one of lists."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys((*first, *second)):
            if key in first and key in second:
                yield from _fields(f"{where}.{key}", first[key], second[key])
            else:
                yield Difference(f"{where}.{key}", _shown(first, key), _shown(second, key))
    elif isinstance(first, list) and isinstance(second, list):
        at = common(first, second)
        if at < min(len(first), len(second)):
            yield from _fields(f"{where}[{at}]", first[at], second[at])
        elif len(first) != len(second):
            yield Difference(where, f"{len(first)} items", f"{len(second)} items")
    elif first != second:
        yield Difference(where, _json(first), _json(second))


def _shown(value: dict[str, Any], key: str) -> str:
    return _json(value[key]) if key in value else "(nothing)"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _prompt(first: Recording, second: Recording) -> Iterator[Difference]:
    a, b = first.prompt, second.prompt
    if a is None or b is None:
        return
    if a.ids is None or b.ids is None:
        if a.segments is not None and b.segments is not None:
            yield from _fields("prompt, as text", _prompt_text(a), _prompt_text(b))
        return
    at = common(a.ids, b.ids)
    if at < max(len(a.ids), len(b.ids)):
        yield Difference(f"prompt, token {at:,}", _ids(a.ids, at), _ids(b.ids, at))


def _prompt_text(prompt: RecordedPrompt) -> list[str]:
    return [segment.text for segment in prompt.segments or ()]


def _ids(ids: Sequence[int], at: int) -> str:
    return "the end" if at == len(ids) else f"id {ids[at]}"


def _answers(first: Recording, second: Recording) -> Iterator[Difference]:
    choices = {step.choice for recording in (first, second) for step in recording.steps}
    # Of another server, messages may be all that is known.
    known = all(any(step.tokens for step in recording.steps) for recording in (first, second))
    for choice in sorted(choices):
        a, b = _tokens(first, choice), _tokens(second, choice)
        at = common(a, b)
        if known and at < max(len(a), len(b)):
            yield Difference(f"choice {choice}, token {at:,}", _text(a, at), _text(b, at))
        else:
            yield from _fields(f"choice {choice}, message", _message(first, choice), _message(second, choice))
        yield from _fields(f"choice {choice}, finish", _finish(first, choice), _finish(second, choice))


def _tokens(recording: Recording, choice: int) -> list[Token]:
    return [token for step in recording.steps if step.choice == choice for token in step.tokens]


def _message(recording: Recording, choice: int) -> dict[str, Any]:
    """The message without the ids of its calls."""
    message = next((each for each in recording.messages if each.choice == choice), None)
    if message is None:
        return {}
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
    return {"content": message.content, "reasoning": message.reasoning, "calls": calls}


def _finish(recording: Recording, choice: int) -> str | None:
    return next((step.finish for step in reversed(recording.steps) if step.choice == choice), None)


def _text(tokens: Sequence[Token], at: int) -> str:
    before = "".join(token.text for token in tokens[max(0, at - _CONTEXT) : at])
    here = "the end" if at == len(tokens) else _one(tokens[at])
    return f"{here} after {before!r}"


def _one(token: Token) -> str:
    return repr(token.text) if token.id is None else f"{token.text!r} (id {token.id})"
