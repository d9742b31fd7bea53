"""Requests to servers, and their answers: whole, streamed, as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

from tests.test_served import REQUESTS, reasoning_of, tool

MODEL = "proof"
#: Of reasoning, in tokens: less than there is, all of it and its end, more.
BUDGETS = (0, 3, 6, 7, 30)
#: By request, the ids of its prompt and of its answer.
Answers = dict[str, tuple[list[int], list[int]]]


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the demo model, greedy: with reasoning and without, with calls and without."""
    for name, (content, tools) in REQUESTS.items():
        for thinking in (True, False):
            request: dict[str, Any] = {
                "model": MODEL,
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_tokens": 200,
                "chat_template_kwargs": {"thinking": thinking},
            }
            yield f"{name}, {'thinking' if thinking else 'at once'}", request | ({"tools": tools} if tools else {})


def texts(*prompts: str, max_tokens: int) -> dict[str, dict[str, Any]]:
    """Of a model that understands nothing, greedy."""
    return {
        content: {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        for content in prompts
    }


def counting(items: int) -> dict[str, Any]:
    """A call that takes more tokens than that, whatever the model thinks of it, and no end of more."""
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": items}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Please count."}],
        "tools": [tool("count", numbers=numbers)],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 2 * items,
        "chat_template_kwargs": {"thinking": False},
    }


def ids(url: str, asked: dict[str, dict[str, Any]], *, strict: str = "off", **extension: Any) -> Answers:
    """What is answered to all of them, sent at once. Nothing of them is left out."""

    def ask(request: dict[str, Any]) -> tuple[list[int], list[int]]:
        body = request | {"dovetail": {"return_token_ids": True, "strict": strict, **extension}}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        assert "x-dovetail-omitted" not in answer.headers
        record = answer.json()["choices"][0]["message"]["dovetail"]
        return record["prompt_token_ids"], record["token_ids"]

    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(ask, asked.values()), strict=True))


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


def whole(made: openai.OpenAI, request: dict[str, Any]) -> dict[str, Any]:
    """An answer that comes in one piece, in the shape of `streamed`."""
    answer = made.chat.completions.create(**request)
    choice, usage = answer.choices[0], answer.usage
    assert usage is not None
    message = choice.message
    return {
        "content": message.content or "",
        "reasoning": reasoning_of(message),
        "calls": [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls or ()],
        "finish": choice.finish_reason,
        "tokens": usage.completion_tokens,
    }


def by_client(request: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The request as OpenAI's client wants it; `options` go to the chat template."""
    own = {name: value for name, value in request.items() if name != "chat_template_kwargs"}
    return own | {"extra_body": {"chat_template_kwargs": request["chat_template_kwargs"] | options}}
