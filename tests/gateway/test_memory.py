"""Memory: an answer that comes back unchanged and without its record is in the prompt by its own tokens."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.events import Call, Message
from dovetail.gateway import Settings
from dovetail.gateway.records.memory import Memory, Recalled, Tenant, digest_of_turn
from dovetail.gateway.store.interface import StoreError, StoreLimits
from dovetail.tokens import Tokenizer
from tests.gateway.forgetful import World, returned
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, folded, ids_of, in_process
from tests.gateway.test_token_exact import letter_by_letter


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_what_is_put_back_is_what_the_oracle_allows(seed: int) -> None:
    """Exactly the answers that are unchanged, at their place, of the same tenant and model, and the only one there."""
    rng = Random(seed)
    with TemporaryDirectory() as folder:
        world = World(rng, Memory(Path(folder) / "m.db", b"k" * 32))
        for _ in range(rng.randint(1, 6)):
            world.converse(rng.randint(1, 4))
        for history in itertools.islice(returned(world), 12):
            assert world.recalled(history) == world.expected(history)
        world.memory.close()


# -- over HTTP --------------------------------------------------------------------------------------------------------

FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
CALLED = Message("", "Hm.", (Call("functions.f:0", "f", '{ "a" : 1.0 }'),))


def settings_in(folder: Path, **more: Any) -> Settings:
    return Settings(served_model_name=MODEL, strict="off", record_key=b"k" * 32, memory=folder / "memory.db", **more)


class Chat:
    """A client of chat completions that returns calls without reasoning, and writes their arguments anew."""

    path, count_path = "/v1/chat/completions", "/tokenize"

    def __init__(self, **more: Any) -> None:
        self.body: dict[str, Any] = {"model": MODEL, "tools": [{"type": "function", "function": FUNCTION}], **more}
        self.history: list[Any] = [{"role": "user", "content": "go"}]

    @property
    def count_body(self) -> dict[str, Any]:
        return {**self.body, "messages": self.history}

    async def ask(self, client: httpx.AsyncClient, **headers: str) -> httpx.Response:
        response = await client.post(self.path, json={**self.body, "messages": self.history}, headers=headers)
        assert response.status_code == 200, response.text
        return response

    def returns(self, response: httpx.Response, arguments: str = '{"a":1}') -> None:
        choices = folded(events_of(response.text)[:-1]) if self.body.get("stream") else response.json()["choices"]
        (call,) = choices[0]["message"]["tool_calls"]
        call["function"]["arguments"] = arguments
        self.history += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        self.history += [{"role": "tool", "tool_call_id": call["id"], "content": "done"}]

    @staticmethod
    def tokens(response: httpx.Response) -> int:
        return int(response.json()["count"])


class Streaming(Chat):
    def __init__(self) -> None:
        super().__init__(stream=True)


class AnthropicMessages(Chat):
    """Without `thinking`, so there are no records."""

    path, count_path = "/v1/messages", "/v1/messages/count_tokens"

    def __init__(self, **more: Any) -> None:
        tool = {"name": "f", "input_schema": FUNCTION["parameters"]}
        super().__init__(max_tokens=100, **more)
        self.body["tools"] = [tool]

    @property
    def count_body(self) -> dict[str, Any]:
        return {**{key: self.body[key] for key in ("model", "tools")}, "messages": self.history}

    def returns(self, response: httpx.Response, arguments: str = '{"a":1}') -> None:
        (call,) = (block for block in response.json()["content"] if block["type"] == "tool_use")
        self.history += [{"role": "assistant", "content": [{**call, "input": json.loads(arguments)}]}]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        self.history += [{"role": "user", "content": [result]}]

    @staticmethod
    def tokens(response: httpx.Response) -> int:
        return int(response.json()["input_tokens"])


class Responses(AnthropicMessages):
    """Whose items have no ids of this server."""

    path, count_path = "/v1/responses", "/v1/responses/input_tokens"

    def __init__(self, **more: Any) -> None:
        self.body = {"model": MODEL, "tools": [{"type": "function", "strict": False, **FUNCTION}], **more}
        self.history = [{"role": "user", "content": "go"}]

    @property
    def count_body(self) -> dict[str, Any]:
        return {**self.body, "input": self.history}

    async def ask(self, client: httpx.AsyncClient, **headers: str) -> httpx.Response:
        response = await client.post(self.path, json=self.count_body, headers=headers)
        assert response.status_code == 200, response.text
        return response

    def returns(self, response: httpx.Response, arguments: str = '{"a":1}') -> None:
        (call,) = (item for item in response.json()["output"] if item["type"] == "function_call")
        self.history += [{key: call[key] for key in ("type", "call_id", "name")} | {"arguments": arguments}]
        self.history += [{"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]


def continued(engine: ScriptedEngine) -> list[bool]:
    """Whether each prompt after the first begins with the one before and its answer."""
    prompts = [completion.prompt for completion in engine.seen]
    return [two[: len(one) + len(engine.ids)] == one + engine.ids for one, two in itertools.pairwise(prompts)]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Chat, Streaming, AnthropicMessages, Responses])
async def test_the_tokens_of_an_answer_are_put_back(
    kind: Callable[[], Chat], engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), kind()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client))
        second = await dialogue.ask(client)
        counted = await client.post(dialogue.count_path, json=dialogue.count_body)
    assert continued(engine) == [True]
    assert "x-dovetail-repairs" not in second.headers
    assert dialogue.tokens(counted) == len(engine.seen[-1].prompt), "queries count another prompt"


@pytest.mark.anyio
async def test_ids_that_the_client_writes_anew(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    """The model wrote a number that is not that of its place, and the results have it too."""
    engine.ids = letter_by_letter(Message("", "Hm.", (Call("functions.f:7", "f", "{}"),)), tok)
    dialogue = Chat()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client), "{}")
        call, result = dialogue.history[1]["tool_calls"][0], dialogue.history[2]
        call["id"] = result["tool_call_id"] = "functions_f_7"
        response = await dialogue.ask(client)
    assert continued(engine) == [True]
    assert "x-dovetail-repairs" not in response.headers
    assert tok.decode(engine.seen[1].prompt).count("functions.f:7") == 2


@pytest.mark.anyio
async def test_all_apis_share_one_memory(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids, chat, messages = letter_by_letter(CALLED, tok), Chat(), AnthropicMessages()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        first = await messages.ask(client)
        chat.returns(await chat.ask(client))
        messages.returns(first)
        await messages.ask(client)
    assert continued(engine)[-1]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Chat, AnthropicMessages, Responses])
@pytest.mark.parametrize("more", [{"store": False}, {"dovetail": {"memory": False}}])
async def test_nothing_is_kept_where_the_request_says_so(
    kind: Callable[..., Chat], more: dict[str, Any], engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), kind(**more)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client))
        for field in more:
            del dialogue.body[field]
        await dialogue.ask(client)
        assert continued(engine) == [False]
        dialogue.returns(await dialogue.ask(client))
        await dialogue.ask(client)
    assert continued(engine)[-1], "this one was to be kept"


@pytest.mark.anyio
async def test_a_response_that_is_deleted_is_forgotten(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Responses()
    settings = settings_in(tmp_path, response_store=tmp_path / "responses.db")
    async with in_process(engine, tok, settings) as client:
        response = await dialogue.ask(client)
        dialogue.returns(response)
        path = f"/v1/responses/{response.json()['id']}"
        assert (await client.delete(path)).status_code == 200
        assert (await client.delete(path)).status_code == 404
        await dialogue.ask(client)
    assert continued(engine) == [False]


@pytest.mark.anyio
async def test_a_request_may_do_without(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Chat()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client))
        dialogue.body["dovetail"] = {"memory": False}
        await dialogue.ask(client)
    assert continued(engine) == [False]


@pytest.mark.anyio
@pytest.mark.parametrize("arguments", ['{"a":2}', '{"a":true}', '{"a":1,"b":1}', "{}"])
@pytest.mark.parametrize("kind", [Chat, AnthropicMessages, Responses])
async def test_an_edited_turn_stays_as_the_client_has_it(
    kind: Callable[[], Chat], arguments: str, engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), kind()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client), arguments)
        response = await dialogue.ask(client)
        dialogue.body["dovetail"] = {"memory": False}
        await dialogue.ask(client)
    assert response.headers["x-dovetail-repairs"] == "memory_changed=1"
    assert "another text" in response.text, "the response does not tell"
    assert engine.seen[1].prompt == engine.seen[2].prompt
    assert continued(engine)[0] is False


@pytest.mark.anyio
async def test_answers_that_differ_in_their_tokens_alone_are_told(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    dialogue = Chat()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        engine.ids = ids_of(Message("", "Another thought.", CALLED.calls), tok)
        await dialogue.ask(client)
        engine.ids = letter_by_letter(CALLED, tok)
        dialogue.returns(await dialogue.ask(client))
        response = await dialogue.ask(client)
    assert response.headers["x-dovetail-repairs"] == "memory_ambiguous=1"
    assert continued(engine)[-1] is False


@pytest.mark.anyio
async def test_every_choice_is_kept(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    scripts = [letter_by_letter(Message(f"Answer {n}."), tok) for n in range(3)]
    engine.scripts = [*scripts]
    dialogue = Chat(n=3, thinking=False)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        choices = (await dialogue.ask(client)).json()["choices"]
        dialogue.body["n"] = 1
        for choice in choices:
            answer = {"role": "assistant", "content": f" {choice['message']['content']}\n"}
            dialogue.history = [*dialogue.history[:1], answer, {"role": "user", "content": "on"}]
            engine.ids = ids_of(Message("ok"), tok)
            await dialogue.ask(client)
    first, _, _, *prompts = (completion.prompt for completion in engine.seen)
    by_text = {choice["message"]["content"]: prompt for choice, prompt in zip(choices, prompts, strict=True)}
    for n, script in enumerate(scripts):
        assert by_text[f"Answer {n}."][: len(first) + len(script)] == first + script


@pytest.mark.anyio
async def test_keys_and_salts_have_memories_of_their_own(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(keyed(named("a"), named("b")), **memory_fields(tmp_path))
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Chat()
    async with in_process(engine, tok, settings) as client:
        dialogue.returns(await dialogue.ask(client, **bearer("a")))
        whole = engine.seen[0].prompt + engine.ids

        async def is_put_back(key: str, **more: Any) -> bool:
            other = Chat(**more)
            other.history = dialogue.history
            response = await other.ask(client, **bearer(key))
            assert "x-dovetail-repairs" not in response.headers, "it tells what others have asked"
            return engine.seen[-1].prompt[: len(whole)] == whole

        assert not await is_put_back("b")
        assert not await is_put_back("a", cache_salt="s")
        assert await is_put_back("a")
        counted = [
            (await client.post("/tokenize", json=dialogue.count_body, headers=bearer(key))).json()["tokens"]
            for key in "ab"
        ]
    assert tuple(counted[0][: len(whole)]) == whole != tuple(counted[1][: len(whole)])


def memory_fields(folder: Path) -> dict[str, Any]:
    fields = settings_in(folder)
    return {name: getattr(fields, name) for name in ("strict", "record_key", "memory")}


@pytest.mark.anyio
async def test_a_file_that_cannot_be_written_costs_the_memory_alone(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory.db").mkdir()
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Chat()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client))
        await dialogue.ask(client)
    assert continued(engine) == [False]
    assert "the store of answers failed" in caplog.text


@pytest.mark.anyio
async def test_a_restart_forgets_nothing(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids, dialogue = letter_by_letter(CALLED, tok), Chat()
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        dialogue.returns(await dialogue.ask(client))
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        await dialogue.ask(client)
    async with in_process(engine, tok, settings_in(tmp_path, default_max_tokens=5)) as client:
        await dialogue.ask(client)
    other = msgspec.structs.replace(settings_in(tmp_path), record_key=b"x" * 32)
    async with in_process(engine, tok, other) as client:
        response = await dialogue.ask(client)
    whole = engine.seen[0].prompt + engine.ids
    assert [each.prompt[: len(whole)] == whole for each in engine.seen[1:]] == [True, True, False]
    assert "x-dovetail-repairs" not in response.headers, "another key knows nothing of it"


@pytest.mark.anyio
async def test_a_continued_answer_is_kept_with_its_beginning(
    engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path
) -> None:
    """The client continues an answer that was cut off, and returns both parts as one message."""
    answer = letter_by_letter(Message("One two three."), tok)
    dialogue = Chat(thinking=False)
    del dialogue.body["tools"]
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        engine.ids = answer[:-5]
        first = (await dialogue.ask(client)).json()["choices"][0]["message"]["content"]
        dialogue.history.append({"role": "assistant", "content": first})
        dialogue.body["continue_final_message"] = True
        engine.ids = answer[-5:]
        rest = (await dialogue.ask(client)).json()["choices"][0]["message"]["content"]
        del dialogue.body["continue_final_message"]
        dialogue.history[-1]["content"] = first + rest
        dialogue.history.append({"role": "user", "content": "on"})
        engine.ids = ids_of(Message("ok"), tok)
        response = await dialogue.ask(client)
    prompts = [each.prompt for each in engine.seen]
    assert prompts[1] == prompts[0] + answer[:-5]
    assert prompts[2][: len(prompts[0]) + len(answer)] == prompts[0] + answer
    assert "x-dovetail-repairs" not in response.headers


@pytest.mark.anyio
async def test_raw_prompts_are_not_kept(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok, settings_in(tmp_path)) as client:
        response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "go"})
    assert response.status_code == 200
    assert not (tmp_path / "memory.db").exists()


# -- bounds -----------------------------------------------------------------------------------------------------------

TENANT = Tenant("a")


def kept(memory: Memory, numbers: Iterable[int], tenant: Tenant = TENANT) -> list[int]:
    """Which of the answers with these numbers memory has."""
    return [n for n in numbers if recalled(memory, n, tenant).messages[1].get("dovetail")]


def recalled(memory: Memory, number: int, tenant: Tenant = TENANT) -> Recalled:
    messages = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "ok"}]
    return memory.recall(messages, None, tenant, b"model")


def keep(memory: Memory, number: int, record: str = "r" * 36, tenant: Tenant = TENANT) -> None:
    place = memory.recall([{"role": "user", "content": f"{number}"}], None, tenant, b"model").place
    memory.keep(record, digest_of_turn("ok", (), {}), (), tenant, b"model", place)


def test_count_bytes_and_age_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, small = (
        Memory(tmp_path / f"{i}.db", b"k", limits)
        for i, limits in enumerate((StoreLimits(entries=3), StoreLimits(size=310)))
    )
    for memory in (few, small):
        for number in range(5):
            keep(memory, number)
        assert kept(memory, range(5)) == [2, 3, 4]
    with pytest.raises(StoreError, match="10066 bytes"):
        keep(small, 9, "r" * 10_000)
    brief, now = Memory(tmp_path / "2.db", b"k", StoreLimits(age=100)), int(time.time())
    keep(brief, 1)
    monkeypatch.setattr(time, "time", lambda: now + 101)
    assert kept(brief, [1]) == []
    assert "dovetail" not in recalled(brief, 1).messages[1], "what is too old is not known any more"


def test_an_answer_that_is_given_again_is_kept_once(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.db", b"k", StoreLimits(entries=10))
    for _ in range(30):
        keep(memory, 1)
    for number in range(30):
        keep(memory, 2, record=f"record {number}")
    with sqlite3.connect(tmp_path / "m.db") as connection:
        assert connection.execute("SELECT record FROM answers ORDER BY rowid").fetchall() == [
            ("r" * 36,),
            ("record 28",),
            ("record 29",),
        ]
    connection.close()
    extensions = [recalled(memory, number).messages[1]["dovetail"] for number in (1, 2)]
    assert extensions == [{"record": "r" * 36}, {"forgotten": "memory_ambiguous"}]


def test_beside_records_the_file_has_the_ids_of_calls_alone(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.db", b"k")
    messages = [{"role": "user", "content": "a secret question"}]
    recalled = memory.recall(messages, None, TENANT, b"model")
    shown = digest_of_turn("a secret answer", (), {})
    memory.keep("record", shown, ["functions.secret:0"], TENANT, b"model", recalled.place)
    memory.close()
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert data.count(b"secret") == data.count(b"functions.secret:0")


def test_a_history_of_thousands_of_turns_is_looked_up(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m.db", b"k")
    keep(memory, 1)
    answers = [{"role": "assistant", "content": f"{n}"} for n in range(3_000)]
    question = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "ok"}]
    assert memory.recall([*question, *answers], None, TENANT, b"model").restored == 1
