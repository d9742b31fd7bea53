"""`dovetail serve --engine vllm --grammar-backend guidance`, the demo pair: our Lark constrains answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

import dovetail
from tests.test_served import tool
from tests.vllm import asking, checkpoints, processes
from tests.vllm.processes import Process, up

REQUESTS = dict(asking.requests())
#: What a structural tag leaves to be checked afterwards.
KEPT = tool(
    "book",
    code={"type": "string", "pattern": "^[A-Z]+$", "maxLength": 4},
    note={"type": "string", "minLength": 12, "maxLength": 40},
    seats={"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
)
KEPT["function"]["parameters"]["additionalProperties"] = False
#: What neither writer has a word for.
LEFT = tool("pick", numbers={"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2})


@pytest.fixture(scope="module")
def server(
    program: Path, tmp_path_factory: pytest.TempPathFactory, embedded: dict[str, asking.Answers]
) -> Iterator[Process]:
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    words = ("--engine", "vllm", "--vllm", program, "--engine-log", log, "--engine-args=--enforce-eager")
    options = ("--context", "1024", "--dtype", "float32", "--max-batch", "4", "--served-model-name", asking.MODEL)
    with up(processes.dovetail(*words, *options, "--grammar-backend", "guidance")) as process:
        yield process
        assert process.stop() == 0
    assert "Unexpected: grammar" not in log.read_text(), "what vLLM says of a draft that the grammar had refused"


def asked(server: Process, *tools: dict[str, Any], seed: int = 0, **fields: Any) -> httpx.Response:
    request = {
        "model": asking.MODEL,
        "messages": [{"role": "user", "content": "Please go on."}],
        "tools": [{**each, "function": {**each["function"], "strict": True}} for each in tools],
        "tool_choice": "required",
        "temperature": 1,
        "seed": seed,
        "max_tokens": 300,
        "chat_template_kwargs": {"thinking": False},
    }
    return httpx.post(f"{server.url}/v1/chat/completions", json=request | fields, timeout=300)


@pytest.mark.parametrize("strict", ["off", "schema"])
def test_ids_are_those_of_the_embedded_engine(
    server: Process, embedded: dict[str, asking.Answers], strict: str
) -> None:
    before = server.metrics()
    assert asking.ids(server.url, REQUESTS, strict=strict) == embedded[strict]
    after = server.metrics()
    drafted, accepted = (
        after[f"dovetail_{name}_tokens_total"] - before[f"dovetail_{name}_tokens_total"]
        for name in ("drafted", "accepted")
    )
    assert 0 < accepted <= drafted


def test_keywords_that_a_tag_drops_are_enforced(server: Process) -> None:
    grammar = dovetail.format(checkpoints.TARGET).grammar([KEPT])
    assert grammar is not None
    assert [*grammar.unenforced("structural_tag")] and not [*grammar.unenforced("lark")]

    answer = asked(server, KEPT, n=8, parallel_tool_calls=False)
    assert answer.status_code == 200, answer.text
    assert "x-dovetail-unenforced" not in answer.headers
    # Such a model may go on with blanks until its tokens are used up.
    ended = [it["message"] for it in answer.json()["choices"] if it["finish_reason"] == "tool_calls"]
    calls = [json.loads(call["function"]["arguments"]) for message in ended for call in message["tool_calls"]]
    assert len(calls) > 4
    for arguments in calls:
        jsonschema.validate(arguments, KEPT["function"]["parameters"])
    assert len({arguments["note"] for arguments in calls}) > 4, "they were drawn"


def test_the_header_lists_what_the_lark_leaves_out(server: Process) -> None:
    answer = asked(server, LEFT, KEPT)
    expected = "tools[0].function.parameters#/properties/numbers/uniqueItems"
    assert answer.headers["x-dovetail-unenforced"] == expected


def test_schemas_that_vllms_llguidance_cannot_compile_are_refused_before(server: Process) -> None:
    answer = asked(server, tool("many", numbers={"type": "array", "maxItems": 10**9}))
    assert answer.status_code == 400
    assert "#/properties/numbers makes lists have more than 10,000 items in all" in answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
