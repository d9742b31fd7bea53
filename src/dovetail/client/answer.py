"""An answer of a chat completion as plain data, with every fault of its shape.

A fault is a sentence about the response: a field that is missing, of a wrong type, or contradicts another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.events import Call, Message

FINISHES = ("stop", "length", "tool_calls", "content_filter")


class Answer(msgspec.Struct, frozen=True):
    """One answer.

    `message`: content, reasoning and calls. `content_type`: the JSON type of the content.
    `faults`: what is wrong with the response's shape. `error`: the error's text if there is no answer.
    `prompt_ids`, `ids`: token ids of prompt and answer, if the endpoint returns them.
    `raw`: the response as it came. `completion`: whether it is a chat completion at all, right or wrong.
    """

    status: int
    raw: str
    message: Message = Message()
    finish: str | None = None
    usage: Mapping[str, Any] | None = None
    prompt_ids: tuple[int, ...] | None = None
    ids: tuple[int, ...] | None = None
    faults: tuple[str, ...] = ()
    error: str | None = None
    error_shape: bool = True
    completion: bool = True

    @property
    def cut_off(self) -> bool:
        return self.finish == "length"


def from_body(status: int, body: bytes) -> Answer:
    """The answer in a whole response."""
    text = body.decode(errors="replace")
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if status != 200:
        return _refusal(status, text, decoded)
    return whole(decoded, text)


def _refusal(status: int, text: str, decoded: Any) -> Answer:
    error = decoded.get("error") if isinstance(decoded, Mapping) else None
    shaped = isinstance(error, Mapping) and isinstance(error.get("message"), str)
    words = error["message"] if isinstance(error, Mapping) and shaped else text
    return Answer(status, text, error=f"{status}: {words:.200}", error_shape=shaped)


def whole(decoded: Any, raw: str) -> Answer:
    """The answer in a decoded `chat.completion` object."""
    if not isinstance(decoded, Mapping):
        return Answer(200, raw, faults=("the response is no JSON object",), completion=False)
    faults: list[str] = []
    choices = decoded.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        return Answer(200, raw, faults=("choices is not a list of one object",), completion=False)
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return Answer(200, raw, faults=("choices[0].message is no object",), completion=False)
    if message.get("role") != "assistant":
        faults.append(f"choices[0].message.role is {message.get('role')!r}, not 'assistant'")
    calls = _calls(message.get("tool_calls"), faults)
    prompt_ids, ids = token_ids(decoded, choice, message)
    return checked(
        Answer(
            200,
            raw,
            Message(_text(message, "content", faults), reasoning_of(message, faults), calls),
            choice.get("finish_reason"),
            mapping(decoded.get("usage")) or None,
            prompt_ids,
            ids,
            tuple(faults),
        )
    )


def checked(answer: Answer) -> Answer:
    """`answer` with the faults that its parts show together: finish reason, ids of calls, arguments, usage."""
    faults = [*answer.faults]
    calls = answer.message.calls
    if not isinstance(answer.finish, str) or answer.finish not in FINISHES:
        faults.append(f"finish_reason is {answer.finish!r}")
    elif answer.finish == "tool_calls" and not calls:
        faults.append("finish_reason is 'tool_calls' and there are no calls")
    if len({call.id for call in calls}) < len(calls):
        faults.append(f"two calls have the same id: {[call.id for call in calls]}")
    return msgspec.structs.replace(answer, faults=(*faults, *_usage_faults(answer)))


def _usage_faults(answer: Answer) -> list[str]:
    usage = answer.usage
    if usage is None:
        return ["there is no usage"]
    prompt, completion, total = (usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total"))
    if not (isinstance(prompt, int) and isinstance(completion, int) and isinstance(total, int)):
        return [f"usage lacks one of its three counts: {prompt!r}, {completion!r}, {total!r}"]
    faults = []
    if prompt + completion != total:
        faults.append(f"usage does not add up: {prompt} + {completion} is not {total}")
    if answer.prompt_ids is not None and len(answer.prompt_ids) != prompt:
        faults.append(f"usage.prompt_tokens is {prompt}, and the prompt has {len(answer.prompt_ids)} tokens")
    if answer.ids is not None and len(answer.ids) != completion:
        faults.append(f"usage.completion_tokens is {completion}, and the answer has {len(answer.ids)} tokens")
    reasoned = mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
    if isinstance(reasoned, int) and reasoned > 2 and not answer.message.reasoning:  # two markers are no reasoning
        faults.append(f"usage counts {reasoned} tokens of reasoning, and the message has none")
    return faults


def reasoning_of(message: Mapping[str, Any], faults: list[str]) -> str:
    """The reasoning of a message or delta, which servers have in one of two fields."""
    return _text(message, "reasoning_content", faults) or _text(message, "reasoning", faults)


def _text(message: Mapping[str, Any], field: str, faults: list[str]) -> str:
    value = message.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        faults.append(f"{field} is no text: {value!r:.80}")
        return ""
    return value


def _calls(value: Any, faults: list[str]) -> tuple[Call, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        faults.append(f"tool_calls is no list: {value!r:.80}")
        return ()
    calls = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            faults.append(f"tool_calls[{i}] has no function")
            continue
        parts = (call.get("id"), function.get("name"), function.get("arguments"))
        for name, part in zip(("id", "function.name", "function.arguments"), parts, strict=True):
            if not isinstance(part, str):
                faults.append(f"tool_calls[{i}].{name} is no text: {part!r:.80}")
        if call.get("type") != "function":
            faults.append(f"tool_calls[{i}].type is {call.get('type')!r}")
        calls.append(Call(*(part if isinstance(part, str) else "" for part in parts)))
    return tuple(calls)


def token_ids(
    response: Mapping[str, Any], choice: Mapping[str, Any], message: Mapping[str, Any]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The token ids of prompt and answer, where Dovetail or vLLM returns them."""
    ours = mapping(message.get("dovetail"))
    prompt = ours.get("prompt_token_ids") or response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    ids = ours.get("token_ids") or choice.get("token_ids")
    return _ids(prompt), _ids(ids)


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _ids(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(each, int) for each in value) else None
