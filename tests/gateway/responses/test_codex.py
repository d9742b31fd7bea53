"""A coding agent's requests as codex sends them: its fields and items, with words of our own. Two turns, streamed."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest

from dovetail.events import Call, Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.gateway.responses.official import check_event, check_order, events_of
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of

pytestmark = pytest.mark.anyio

PATCH_GRAMMAR = 'start: "*** Begin Patch\\n" line+ "*** End Patch"\nline: /[-+ ][^\\n]*\\n/\n'


def function(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    schema |= {"required": [*properties][:1], "additionalProperties": False}
    return {"type": "function", "name": name, "description": f"Does {name}.", "strict": False, "parameters": schema}


TOOLS: list[dict[str, Any]] = [
    function("exec_command", cmd="string", timeout_ms="integer"),
    function("update_plan", plan="string"),
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
    },
    {
        "type": "namespace",
        "name": "agents_v1",
        "description": "Other agents.",
        "tools": [function("spawn", task="string"), function("wait", id="string")],
    },
    {
        "type": "namespace",
        "name": "mcp__notes__",
        "description": "Notes.",
        "tools": [function("search", query="string")],
    },
    {"type": "web_search", "external_web_access": False},
]


def message(role: str, text: str, number: int) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": [{"type": "input_text", "text": text}]}


TURN_1: dict[str, Any] = {
    "model": MODEL,
    "stream": True,
    "store": False,
    "input": [
        message("developer", "You edit files for the user.", 1),
        message("developer", "Commands run in a sandbox.", 2),
        message("user", "<environment>shell: bash</environment>", 3),
        message("user", "Fix the typo in notes.txt, please.", 4),
    ],
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-session",
    "client_metadata": {"originator": "a test"},
}
PATCH = "*** Begin Patch\n-teh\n+the\n*** End Patch"
ANSWER = Message(
    "On it. ",
    "Look first, then patch.",
    (
        Call("functions.exec_command:0", "exec_command", '{"cmd": "cat notes.txt"}'),
        Call("functions.apply_patch:1", "apply_patch", json.dumps({"input": PATCH})),
        Call("functions.agents_v1__spawn:2", "agents_v1__spawn", '{"task": "proofread"}'),
        Call("functions.mcp__notes__search:3", "mcp__notes__search", '{"query": "typo"}'),
    ),
)


async def post(engine: ScriptedEngine, tok: Tokenizer, body: dict[str, Any]) -> tuple[httpx.Response, list[Any]]:
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, record_key=b"k" * 32))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail") as client:
        response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    events = events_of(response.text)
    for event in events:
        check_event(event)
    return response, check_order(events)


def as_codex_returns(item: dict[str, Any]) -> dict[str, Any]:
    """Codex reads an item into its own types, and writes only what these have."""
    fields = {
        "reasoning": ("summary", "encrypted_content"),
        "message": ("id", "role", "content"),
        "function_call": ("id", "name", "namespace", "arguments", "call_id"),
        "custom_tool_call": ("id", "name", "input", "call_id", "status"),
    }[item["type"]]
    returned = {"type": item["type"], **{field: item[field] for field in fields if field in item}}
    if item["type"] == "message":
        returned["content"] = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
    return returned


async def test_two_turns(engine: ScriptedEngine, tok: Tokenizer) -> None:
    answer = ids_of(ANSWER, tok)
    engine.scripts, engine.sizes = [answer, ids_of(Message("Done."), tok)], (5, 1, 3)
    response, items = await post(engine, tok, TURN_1)
    assert response.headers["x-dovetail-omitted"] == "tools[5]:web_search"
    assert response.headers.get("x-dovetail-repairs") is None or "call_id" not in response.headers["x-dovetail-repairs"]
    kinds = [(item["type"], item.get("namespace"), item.get("name")) for item in items]
    assert kinds == [
        ("reasoning", None, None),
        ("message", None, None),
        ("function_call", None, "exec_command"),
        ("custom_tool_call", None, "apply_patch"),
        ("function_call", "agents_v1", "spawn"),
        ("function_call", "mcp__notes__", "search"),
        ("reasoning", None, None),
    ]
    assert items[0]["summary"] == [{"type": "summary_text", "text": ANSWER.reasoning}]
    assert items[3]["input"] == PATCH
    assert [item["call_id"] for item in items[2:6]] == [call.id for call in ANSWER.calls]
    assert items[6]["encrypted_content"]

    results = [
        {"type": "function_call_output", "call_id": items[2]["call_id"], "output": "teh cat"},
        {"type": "custom_tool_call_output", "call_id": items[3]["call_id"], "output": "Done"},
        {"type": "function_call_output", "call_id": items[4]["call_id"], "output": "agent 1"},
        {
            "type": "function_call_output",
            "call_id": items[5]["call_id"],
            "output": [{"type": "input_text", "text": "none"}],
        },
    ]
    turn_2 = copy.deepcopy(TURN_1)
    turn_2["input"] += [*map(as_codex_returns, items), *results]
    response, items = await post(engine, tok, turn_2)
    assert items[0]["content"][0]["text"] == "Done."
    first, second = engine.seen
    # The second prompt goes on from the first prompt and its answer, token for token.
    assert second.prompt[: len(first.prompt) + len(answer)] == (*first.prompt, *answer)
    assert "record" not in response.headers.get("x-dovetail-repairs", "")


async def test_items_of_tools_that_nobody_here_can_run(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Calls of OpenAI's own tools in a history are shown as calls if they have an output, else left out and listed."""
    engine.ids = ids_of(Message("Done."), tok)
    body = copy.deepcopy(TURN_1)
    body["input"] += [
        {
            "type": "local_shell_call",
            "call_id": "a",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["pwd"]}},
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "status": "completed",
            "operation": {"type": "delete_file", "path": "x"},
        },
        {"type": "local_shell_call_output", "id": "a", "output": "notes.txt"},
        {"type": "shell_call_output", "call_id": "b", "output": [{"stdout": "/home"}]},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "mcp_call", "id": "d", "name": "search", "server_label": "s", "arguments": "{}", "output": "hits"},
        {"type": "mcp_call", "id": "e", "name": "search", "server_label": "s", "arguments": "{}", "error": {"code": 5}},
        {"type": "compaction", "encrypted_content": "x"},
        message("user", "And?", 9),
    ]
    response, _ = await post(engine, tok, body)
    assert response.headers["x-dovetail-omitted"] == (
        "input[10]:web_search_call, input[13]:compaction, tools[5]:web_search"
    )
    prompt = b"".join(map(tok.token_bytes, engine.seen[0].prompt)).decode()
    for shown in ('"ls"', '"pwd"', '"delete_file"', "notes.txt", "/home", "completed", "hits", '"code":5', "And?"):
        assert shown in prompt


async def test_a_task_from_another_agent(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """In an agent's first request, it is all that the agent has to do."""
    engine.ids = ids_of(Message("Done."), tok)
    body = copy.deepcopy(TURN_1)
    task = [
        {"type": "input_text", "text": "Sender: /root\nPayload:\n"},
        {"type": "encrypted_content", "encrypted_content": "Count the files."},
    ]
    body["input"][2:] = [{"type": "agent_message", "author": "/root", "recipient": "/root/count", "content": task}]
    await post(engine, tok, body)
    assert "<|im_middle|>Sender: /root\nPayload:\nCount the files.<|im_end|><|im_assistant|>" in tok.decode(
        engine.seen[0].prompt
    )
