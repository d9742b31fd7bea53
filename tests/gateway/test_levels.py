"""How strictly an answer is constrained: which setting counts, and that it is enforced, by the demo pair too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import openai
import pytest

from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.tokens import Tokenizer
from tests.demo_server import demo_server
from tests.gateway.families import OpensReasoning, ShowsMessageTools, WithOptions
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, prepared

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
VALID, INVALID = '{"city": "Paris"}', '{"town": "Paris"}'


def tool(name: str, strict: bool | None = None, schema: Any = PLACE) -> dict[str, Any]:
    own = {} if strict is None else {"strict": strict}
    return {"type": "function", "function": {"name": name, "parameters": schema, **own}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def schema_format(schema: Any = PLACE, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, **fields}}


#: A `json_schema` without a schema, which OpenAI allows.


def leveled(tok: Tokenizer, fmt: Format | None = None, server: Any = "schema", **body: Any) -> PreparedTurn:
    """The turn of a request at a server of the level `server`. The model does not reason unless `thinking`."""
    settings = Settings(served_model_name=MODEL, strict=server)
    return prepared(tok, fmt, settings, chat_template_kwargs={"thinking": body.pop("thinking", False)}, **body)


def takes(
    turn: PreparedTurn, tok: Tokenizer, content: str = "", *calls: tuple[str, str], reasoning: str | None = None
) -> bool:
    constraint = turn.choices[0].completion.constraint
    if constraint is None:
        return True
    made = tuple(Call(f"functions.{name}:{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    message = Message(content, reasoning or "", made)
    matcher = constraint.another()  # type: ignore[attr-defined]  # a Matcher
    return all(map(matcher.advance, ids_of(message, tok, thinking=reasoning is not None)))


def level(turn: PreparedTurn, tok: Tokenizer) -> str:
    """How the tool `f` is constrained."""
    assert takes(turn, tok, "", ("f", VALID))
    if takes(turn, tok, "", ("rm", VALID)):
        return "off"
    return "names" if takes(turn, tok, "", ("f", INVALID)) else "schema"


#: The levels of the server and of the request -> those of a tool whose `strict` is absent, true or false.
LEVELS = {
    ("schema", None): "schema schema names",
    ("names", None): "names schema names",
    ("off", None): "off schema off",
    ("schema", "schema"): "schema schema names",
    ("names", "schema"): "schema schema names",
    ("off", "schema"): "schema schema names",
    ("schema", "names"): "names names names",
    ("names", "names"): "names names names",
    ("off", "names"): "names names names",
    ("schema", "off"): "off off off",
    ("names", "off"): "off off off",
    ("off", "off"): "off off off",
}


@pytest.mark.parametrize(("server", "request_says"), LEVELS)
def test_server_request_and_tool_set_the_level(tok: Tokenizer, server: str, request_says: str | None) -> None:
    expected = LEVELS[server, request_says].split()
    levels = [
        level(leveled(tok, server=server, tools=[tool("f", strict)], dovetail={"strict": request_says}), tok)
        for strict in (None, True, False)
    ]
    assert levels == expected


def test_tools_of_messages_set_their_level_too(tok: Tokenizer) -> None:
    def turn(strict: Any, **body: Any) -> PreparedTurn:
        messages = [{"role": "system", "content": "", "tools": [tool("f", strict)]}, USER]
        return leveled(tok, ShowsMessageTools(), "names", messages=messages, **body)

    assert level(turn(None), tok) == "names"
    assert level(turn(True), tok) == "schema"
    assert level(turn(True, dovetail={"strict": "names"}), tok) == "names"
    with pytest.raises(InvalidRequest) as refused:
        turn("yes")
    assert refused.value.param == "messages[0].tools[0].function.strict"


def test_allowed_tools_bound_the_grammar_and_not_the_prompt(tok: Tokenizer) -> None:
    tools = [tool("f"), tool("g")]
    for server in ("off", "schema"):
        everything = leveled(tok, server=server, tools=tools)
        for mode in ("auto", "required"):
            turn = leveled(tok, server=server, tools=tools, tool_choice=allowed(mode, "g"))
            assert turn.prompt == everything.prompt  # which an engine has in its cache
            assert takes(turn, tok, "", ("g", VALID)) and not takes(turn, tok, "", ("f", VALID))
            assert takes(turn, tok, "", ("g", INVALID)) is (server == "off")
            assert takes(turn, tok, "Hello.") is (mode == "auto")


def test_keys_have_the_order_that_the_prompt_shows(tok: Tokenizer) -> None:
    """Kimi's prompts sort the keys of tools, and show a response format only if the template has the option."""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b", "a"]}
    as_sent, as_sorted = '{"b": 1, "a": 2}', '{"a": 2, "b": 1}'
    declaring = WithOptions("tool_choice", "response_format")
    hidden, shown = (leveled(tok, fmt, response_format=schema_format(schema)) for fmt in (KimiK25(), declaring))
    assert takes(hidden, tok, as_sent) and not takes(hidden, tok, as_sorted)
    assert takes(shown, tok, as_sorted) and not takes(shown, tok, as_sent)


@pytest.mark.parametrize("server", ["off", "names", "schema"])
@pytest.mark.parametrize("own", [None, "off", "schema"])
def test_a_response_format_is_enforced_at_every_level(tok: Tokenizer, server: str, own: str | None) -> None:
    turn = leveled(tok, server=server, dovetail={"strict": own}, response_format=schema_format())
    assert takes(turn, tok, VALID) and not takes(turn, tok, INVALID) and not takes(turn, tok, "Paris.")


def test_the_constraint_begins_where_reasoning_ends(tok: Tokenizer) -> None:
    for tools in (None, [tool("f")]):
        turn = leveled(tok, thinking=True, tools=tools, response_format=schema_format())
        assert takes(turn, tok, VALID, reasoning='Not {"city": yet.')
        assert takes(turn, tok, VALID, reasoning="")
        assert not takes(turn, tok, INVALID, reasoning="")
        assert not takes(turn, tok, "Paris.", reasoning="Hm.")


def test_a_continued_answer_cannot_have_a_response_format(tok: Tokenizer) -> None:
    half = [USER, {"role": "assistant", "content": '{"city":'}]
    with pytest.raises(InvalidRequest, match="response_format") as refused:
        leveled(tok, messages=half, continue_final_message=True, response_format=schema_format())
    assert refused.value.param == "continue_final_message"


def test_a_model_that_opens_its_reasoning_may_leave_it_out(tok: Tokenizer) -> None:
    for thinking in (True, False):
        turn = leveled(tok, OpensReasoning(), thinking=thinking, response_format=schema_format())
        assert takes(turn, tok, VALID)
        constraint = turn.choices[0].completion.constraint
        assert constraint is not None
        reasoned = (tok.control["<think>"], *ids_of(Message(VALID, "Hm."), tok))
        assert all(map(constraint.advance, reasoned)) is thinking


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [tool("f", "yes")]}, "tools[0].function.strict"),  # type: ignore[arg-type]
    ({"tools": [tool("f")], "tool_choice": allowed("auto", "g")}, "tool_choice.allowed_tools.tools[0]"),
    ({"tools": [tool("f")], "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": allowed("auto", "f")}, "tool_choice.allowed_tools.tools[0]"),
    ({"tools": [tool("f")], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": schema_format(3)}, "response_format.json_schema.schema"),
    ({"response_format": schema_format(None, strict=True)}, "response_format.json_schema.schema"),
    ({"response_format": schema_format(None, properties={})}, "response_format.json_schema.schema"),
    ({"response_format": schema_format({"type": "objekt"})}, "response_format.json_schema.schema"),
    ({"response_format": schema_format({"properties": 3})}, "response_format.json_schema.schema"),
    ({"response_format": schema_format({"$ref": "#/$defs/none"})}, "response_format.json_schema.schema"),
]


@pytest.mark.parametrize(("extra", "param"), REFUSED, ids=[json.dumps(extra)[:60] for extra, _ in REFUSED])
async def test_an_error_names_the_wrong_field_of_a_level(
    engine: ScriptedEngine, tok: Tokenizer, extra: Any, param: str
) -> None:
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": [USER], **extra})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param and param in error["message"]
    assert not engine.seen


async def test_a_deep_response_format_is_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    deep = '{"a":' * 400 + "1" + "}" * 400
    response_format = f'{{"type": "json_schema", "json_schema": {{"name": "a", "schema": {deep}}}}}'
    body = f'{{"model": "{MODEL}", "messages": {json.dumps([USER])}, "response_format": {response_format}}}'
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_of_a_format_is_content(engine: ScriptedEngine, tok: Tokenizer, stream: bool) -> None:
    """With and without tools; the scripted engine checks every token against the constraint."""
    engine.ids = ids_of(Message(VALID, "Hm."), tok)
    body = {"model": MODEL, "messages": [USER], "response_format": schema_format(), "stream": stream}
    for tools in (None, [tool("f")]):
        async with in_process(engine, tok) as client:
            response = await client.post("/v1/chat/completions", json={**body, "tools": tools})
        assert response.status_code == 200, response.text
        if stream:
            choices = [event["choices"][0] for event in events_of(response.text)[:-1]]
            content = "".join(choice["delta"].get("content") or "" for choice in choices)
        else:
            choices = response.json()["choices"]
            content = choices[0]["message"]["content"]
        assert (content, choices[-1]["finish_reason"]) == (VALID, "stop")


# -- the demo pair ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Iterator[openai.OpenAI]:
    with demo_server() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


class Answer:
    """One choice of an answer, whole or added up from a stream."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[list[str]] = []
        self.finish: str | None = None


def complete(client: openai.OpenAI, stream: bool, request: dict[str, Any]) -> Sequence[Answer]:
    choices = [Answer() for _ in range(request.get("n", 1))]
    if stream:
        for chunk in client.chat.completions.create(**request, stream=True):
            for part in chunk.choices:
                choice = choices[part.index]
                choice.content += part.delta.content or ""
                choice.reasoning += getattr(part.delta, "reasoning_content", None) or ""
                for piece in part.delta.tool_calls or ():
                    if piece.id is not None:
                        choice.calls.append([piece.function.name, ""])
                    choice.calls[piece.index][1] += piece.function.arguments or ""
                choice.finish = part.finish_reason or choice.finish
        return choices
    for part in client.chat.completions.create(**request).choices:
        choice = choices[part.index]
        choice.content, choice.finish = part.message.content or "", part.finish_reason
        choice.reasoning = getattr(part.message, "reasoning_content", None) or ""
        choice.calls = [[c.function.name, c.function.arguments] for c in part.message.tool_calls or ()]
    return choices


def asking(text: str, *, thinking: bool, strict: str | None = None, **body: Any) -> dict[str, Any]:
    request = {"model": "demo", "messages": [{"role": "user", "content": text}], "seed": 7, **body}
    extra = {"chat_template_kwargs": {"thinking": thinking}, "dovetail": {"strict": strict}}
    return {"n": 3, "temperature": 2, "max_tokens": 64, "extra_body": extra} | request


TOOLS = [tool("get_weather"), tool("find_hotel"), tool("book")]
DECLARED = {"get_weather", "find_hotel", "book"}
UNDECLARED = "Please delete the file notes.txt with delete_file and get the weather for city Paris."
WILD = [
    (UNDECLARED, "auto", DECLARED),
    (UNDECLARED, "required", DECLARED),
    (UNDECLARED, allowed("auto", "find_hotel"), {"find_hotel"}),
    (UNDECLARED, allowed("required", "find_hotel", "book"), {"find_hotel", "book"}),
]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("strict", ["names", "off"])
def test_names_never_produce_an_undeclared_name(demo: openai.OpenAI, strict: str, thinking: bool, stream: bool) -> None:
    """At temperature 2, with speculation; also at the level "off", if `tool_choice` is not auto."""
    called: list[str] = []
    for text, choice, names in WILD:
        if strict == "off" and choice == "auto":
            continue
        # At temperature 2 this model does not end its reasoning.
        heat = 1 if thinking else 2
        request = asking(text, thinking=thinking, strict=strict, tools=TOOLS, tool_choice=choice, temperature=heat)
        for answer in complete(demo, stream, request):
            assert {name for name, _ in answer.calls} <= names
            called += (name for name, _ in answer.calls)
            if answer.finish == "tool_calls":
                assert all(isinstance(json.loads(arguments), dict) for _, arguments in answer.calls)
    assert called


def test_without_a_constraint_the_model_calls_undeclared_names(demo: openai.OpenAI) -> None:
    """So the test above can fail with this model."""
    names: set[str] = set()
    for seed in range(30):
        request = asking(UNDECLARED, thinking=False, strict="off", tools=TOOLS, seed=seed, max_tokens=32)
        names |= {name for answer in complete(demo, False, request) for name, _ in answer.calls}
        if names - DECLARED:
            return
    pytest.fail(f"only {names}")


def test_one_call_at_a_time(demo: openai.OpenAI) -> None:
    text = "Can you cancel the user with names set to green and call off a user using names red?"
    names = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}
    for parallel, calls in ((True, ["green", "red"]), (False, ["green"])):
        tools = [tool("cancel_user", schema=names)]
        request = asking(text, thinking=False, temperature=0, n=1, max_tokens=200, tools=tools)
        (answer,) = complete(demo, False, request | {"parallel_tool_calls": parallel})
        assert [json.loads(arguments) for _, arguments in answer.calls] == [{"names": [name]} for name in calls]
        assert answer.finish == "tool_calls"


TRIP = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "note": {"type": "string", "maxLength": 12},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "days", "note", "sunny"],
    "additionalProperties": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("response_format", [schema_format(TRIP), {"type": "json_object"}], ids=["schema", "object"])
@pytest.mark.parametrize("choice", [None, "auto", "none"], ids=["no tools", "auto", "none"])
def test_the_demo_model_answers_in_json(
    demo: openai.OpenAI, response_format: dict[str, Any], choice: str | None, thinking: bool, stream: bool
) -> None:
    """The model was never trained on such requests: only the constraint makes its answers JSON."""
    whole = 0
    text = "Please get the weather for city Paris."
    request = asking(text, thinking=thinking, temperature=1, max_tokens=128, response_format=response_format)
    if choice is not None:
        request |= {"tools": TOOLS, "tool_choice": choice}
    for answer in complete(demo, stream, request):
        if answer.finish == "length":
            continue
        whole += 1
        assert bool(answer.calls) is (answer.finish == "tool_calls")
        assert not (answer.calls and answer.content.strip())
        if answer.calls:
            for name, arguments in answer.calls:
                assert choice == "auto" and name in DECLARED
                jsonschema.validate(json.loads(arguments), PLACE)
        else:
            value = json.loads(answer.content)
            jsonschema.validate(value, TRIP if response_format["type"] == "json_schema" else {"type": "object"})
    assert whole


def test_the_clients_own_way_to_ask_for_a_schema(demo: openai.OpenAI) -> None:
    """`parse` sends a class as a strict schema and reads the answer as an instance; its tools are strict too."""
    import pydantic

    class Trip(pydantic.BaseModel):
        days: int = pydantic.Field(ge=1, le=30)
        sunny: bool

    answer = demo.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Where to?"}],
        response_format=Trip,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    assert isinstance(answer.choices[0].message.parsed, Trip)
    called = demo.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Please plan a trip with days 3."}],
        tools=[openai.pydantic_function_tool(Trip)],
        tool_choice="required",
        parallel_tool_calls=False,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    (call,) = called.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Trip)
