"""Histories whose turns the chat template refuses, through each API, and with records."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dovetail.events import Message
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.formats.prompts.history import HistoryRules
from dovetail.gateway import Settings, create_app
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Tokenizer
from tests.formats import chat_templates
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, turn_request

pytestmark = pytest.mark.anyio

SETTINGS = Settings(served_model_name=MODEL, strict="off", record_key=b"k" * 32)
#: Refuses what Mistral's templates refuse, and two calls in a message.
TEMPLATE = """{% set ns = namespace(turns=0) %}{% for message in messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (ns.turns % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.turns = ns.turns + 1 %}{% endif %}
{%- if message.tool_calls and message.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}
{{- message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
SHOWN = """user: one

two<|im_end|>
assistant: three

four<|im_end|>
user: five<|im_end|>
assistant: <tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call><|im_end|>
tool: x<|im_end|>
assistant: <tool_call>
{"name": "f", "arguments": {"a": 2}}
</tool_call><|im_end|>
tool: y<|im_end|>
assistant: Understood.<|im_end|>
user: six<|im_end|>
assistant: """
KINDS = {"calls_split", "user_merged", "assistant_merged", "assistant_added"}


def spoken(*texts: str) -> list[dict[str, Any]]:
    roles = ["user", "user", "assistant", "assistant", "user"]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


TEXTS = spoken("one", "two", "three", "four", "five")
LAST = {"role": "user", "content": "six"}
CALLS = [("1", '{"a": 1}', "x"), ("2", '{"a": 2}', "y")]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            *TEXTS,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}}
                    for i, arguments, _ in CALLS
                ],
            },
            *({"role": "tool", "tool_call_id": i, "content": text} for i, _, text in reversed(CALLS)),
            LAST,
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            *TEXTS,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": i, "name": "f", "input": {"a": int(i)}} for i, *_ in CALLS],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": i, "content": text} for i, _, text in CALLS],
            },
            LAST,
        ],
    },
    "/v1/responses": {
        "store": False,
        "input": [
            *TEXTS,
            *({"type": "function_call", "call_id": i, "name": "f", "arguments": each} for i, each, _ in CALLS),
            *({"type": "function_call_output", "call_id": i, "output": text} for i, _, text in CALLS),
            LAST,
        ],
    },
}


def alternating() -> JinjaFormat:
    fmt = chat_templates.of_source(TEMPLATE, ("<|im_end|>",))
    assert (fmt.history_rules.alternation, fmt.history_rules.one_call) == ("spoken", True)
    return fmt


@pytest.mark.parametrize("path", BODIES)
async def test_each_api_takes_them(engine: ScriptedEngine, tok: Tokenizer, path: str) -> None:
    # Messages joins neighbours itself, as Anthropic does.
    joins = {"user_merged", "assistant_merged"} if path == "/v1/messages" else set[str]()
    engine.ids = ids_of(Message("Done."), tok)
    app = create_app(engine, alternating(), tok, SETTINGS)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        response = await client.post(path, json={"model": MODEL, **BODIES[path]})
        off = {"repair": dict.fromkeys(KINDS, False)}
        refused = await client.post(path, json={"model": MODEL, **BODIES[path], "dovetail": off})
    assert response.status_code == 200, response.text
    repairs = {*response.headers["x-dovetail-repairs"].split(",")}
    assert {kind for kind in KINDS if f"{kind}=1" in repairs} == KINDS - joins
    assert tok.decode(engine.seen[0].prompt) == (SHOWN.replace("three\n\n", "three") if joins else SHOWN)
    assert refused.status_code == 400


class Alternating(KimiK25):
    """Knows only turns that alternate, of one call each."""

    history_rules = HistoryRules(developer=False, alternation="spoken", one_call=True)


def test_answers_with_records_stay_in_their_place_where_others_are_joined(tok: Tokenizer) -> None:
    """A prompt has an answer by its own tokens if the answer is a message of its own; else it is rendered from text."""
    runner = TurnRunner(ScriptedEngine(tok), Alternating(), tok, SETTINGS)
    off: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
    user: dict[str, Any] = {"role": "user", "content": "go"}

    def answered(history: list[dict[str, Any]], content: str) -> tuple[dict[str, Any], tuple[int, ...]]:
        """An answer with its record, and the prompt up to its end."""
        turn = runner.prepare(turn_request({"messages": history, **off}))
        ids = (*(token for letter in content for token in tok.encode(letter)), tok.control["<|im_end|>"])
        message = {"role": "assistant", "content": content, "dovetail": {"record": turn.record(0, ids)}}
        return message, turn.prompt + ids

    first, begin = answered([user, user], "the user")
    other, _ = answered([user], "asks the user")
    history = [user, user, first, user, other, other, user]
    last = runner.prepare(turn_request({"messages": history, **off}))
    assert last.prompt[: len(begin)] == begin
    texts = tok.decode(last.prompt)
    assert "asks the user\n\nasks the user<|im_end|>" in texts
    joined = tok.encode("asks the user\n\nasks the user")
    assert any(last.prompt[i : i + len(joined)] == tuple(joined) for i in range(len(last.prompt)))
    assert [repair.kind for repair in last.repairs] == ["user_merged", "assistant_merged"]
