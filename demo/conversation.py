"""One streamed answer and whole conversations, by OpenAI's client; and what each answer cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

from demo.script import REQUESTS, TOOLS, answer

#: Told of each piece as it streams: its kind (user, reasoning, content, call, arguments, tool) and text.
Show = Callable[[str, str], None]

_ROUNDS = 4  # model turns per request; a small model may go on calling


@dataclass(frozen=True)
class Answer:
    """An assistant message, and its cost: tokens, engine steps, tokens drafted and accepted, seconds in all."""

    message: dict[str, Any]
    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float


def ask(
    client: openai.OpenAI, model: str, messages: list[Any], *, speculate: bool, show: Show, choice: Any = "auto"
) -> Answer:
    """Stream one greedy answer to `messages`. `choice`: the request's tool_choice."""
    started = time.perf_counter()
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice=choice,
        temperature=0,
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={} if speculate else {"dovetail": {"draft_tokens": 0}},
    )
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    usage: Any = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if text := getattr(choice.delta, "reasoning_content", None):
                reasoning += text
                show("reasoning", text)
            if choice.delta.content:
                content += choice.delta.content
                show("content", choice.delta.content)
            for call in choice.delta.tool_calls or ():
                if call.index == len(calls):
                    calls.append({"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}})
                if call.function and call.function.name:
                    calls[call.index]["function"]["name"] = call.function.name
                    show("call", call.function.name)
                if call.function and call.function.arguments:
                    calls[call.index]["function"]["arguments"] += call.function.arguments
                    show("arguments", call.function.arguments)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    seconds = time.perf_counter() - started
    cost = usage.speculation
    return Answer(message, usage.completion_tokens, cost["steps"], cost["drafted"], cost["accepted"], seconds)


def converse(
    client: openai.OpenAI, model: str, *, speculate: bool, show: Show, choices: tuple[str, ...] = ("auto",)
) -> list[Answer]:
    """The whole script: every request, the calls that the model makes for it, their results and its answers.

    `choices`: the tool_choice of the answers to a request, one after the other; the last one goes on.
    """
    messages: list[dict[str, Any]] = []
    answers: list[Answer] = []
    for request in REQUESTS:
        messages.append({"role": "user", "content": request})
        show("user", request)
        for number in range(_ROUNDS):
            choice = choices[min(number, len(choices) - 1)]
            answers.append(ask(client, model, messages, speculate=speculate, show=show, choice=choice))
            turn = answers[-1].message
            messages.append(turn)
            for call in turn.get("tool_calls", ()):
                result = answer(call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                show("tool", result)
            if "tool_calls" not in turn:
                break
    return answers
