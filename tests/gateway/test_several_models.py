"""Several models behind one gateway: which one a name means, for whom, and what a model that is not there answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.app import app_of
from dovetail.gateway.models import Model, Models, Names
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.observe.recording import decode
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.gateway.records.memory import Memory
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import bearer, keyed, named
from tests.gateway.scripted import ScriptedEngine, ids_of
from tests.gateway.test_aliases import REQUESTS

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
LARGE, SMALL = Names("large", ("haiku", "claude-*"), ("sql",)), Names("small")


class Behind:
    """Two models with engines of their own, one that starts, and one that has failed."""

    def __init__(self, tok: Tokenizer, settings: Settings, memory: Memory | None = None) -> None:
        self.engines = {"large": ScriptedEngine(tok), "small": ScriptedEngine(tok, context=512)}
        self.models = Models(Metrics())
        for names in (LARGE, SMALL):
            served = self.models.new(names)
            self.engines[names.name].ids = ids_of(Message(f"I am {names.name}"), tok)
            served.ready(Model(self.engines[names.name], KimiK25(), tok, settings, memory))
            self.models.put(served)
        self.models.put(self.models.new(Names("slow")))
        broken = self.models.new(Names("broken"))
        broken.failed("its weights are gone")
        self.models.put(broken)
        self.app: Starlette = app_of(self.models, settings, memory)


@asynccontextmanager
async def client_of(behind: Behind) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(behind.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        yield client


@pytest.fixture
def behind(tok: Tokenizer) -> Behind:
    return Behind(tok, Settings(served_model_name=""))


async def ask(client: httpx.AsyncClient, model: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    body = {"model": model, "messages": [USER]}
    return await client.post("/v1/chat/completions", json=body, headers=dict(headers or {}))


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
async def test_every_path_finds_the_model_by_its_name(behind: Behind, path: str, body: dict[str, Any]) -> None:
    async with client_of(behind) as client:
        for name in ("large", "small", "haiku", "claude-opus", "sql"):
            assert (await client.post(path, json={"model": name, **body})).status_code == 200
        unknown = await client.post(path, json={"model": "opus", **body})
        unnamed = await client.post(path, json=body)
        slow = await client.post(path, json={"model": "slow", **body})
        broken = await client.post(path, json={"model": "broken", **body})
    there = "'large', 'haiku', 'sql', 'small', 'slow' and 'broken' are"
    assert unknown.status_code == 404 and f"the model 'opus' is not served here; {there}" in unknown.text
    assert unnamed.status_code == 400 and there in unnamed.text
    assert slow.status_code == broken.status_code == 503 and slow.headers["retry-after"] == "10"
    assert "the model 'slow' takes no requests now: it is starting" in slow.text
    assert "the model 'broken' takes no requests now: its weights are gone" in broken.text


async def test_errors_have_the_shape_of_their_api(behind: Behind) -> None:
    async with client_of(behind) as client:
        body = {"model": "opus", "messages": [USER], "max_tokens": 9}
        anthropic = (await client.post("/v1/messages", json=body)).json()
        openai = (await client.post("/v1/responses", json={"model": "opus", "input": "hi"})).json()
        bad = await client.post("/v1/chat/completions", content="{", headers={"content-type": "application/json"})
    assert anthropic["type"] == "error" and anthropic["error"]["type"] == "not_found_error"
    assert openai["error"]["code"] == "model_not_found" and openai["error"]["param"] == "model"
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "model"


async def test_each_model_answers_by_its_own_engine(behind: Behind) -> None:
    async with client_of(behind) as client:
        answers = {name: (await ask(client, name)).json() for name in ("large", "haiku", "small", "sql")}
    said = {name: answer["choices"][0]["message"]["content"] for name, answer in answers.items()}
    assert said == {"large": "I am large", "haiku": "I am large", "small": "I am small", "sql": "I am large"}
    assert {name: answer["model"] for name, answer in answers.items()} == {name: name for name in answers}
    assert [each.adapter for each in behind.engines["large"].seen] == ["", "", "sql"]


async def test_models_are_listed_and_each_is_ready_for_itself(behind: Behind) -> None:
    async with client_of(behind) as client:
        listed = (await client.get("/v1/models")).json()
        assert {model["id"]: model["max_model_len"] for model in listed["data"]} == {
            **dict.fromkeys(("large", "haiku", "sql"), 4096),
            "small": 512,
            "slow": None,
            "broken": None,
        }
        assert (listed["first_id"], listed["last_id"]) == ("large", "broken")
        ready = await client.get("/ready")
        statuses = {"large": "ready", "small": "ready", "slow": "starting", "broken": "failed"}
        assert ready.status_code == 200 and ready.json() == {"status": "ready", "models": statuses}
        for name, status in {**statuses, "haiku": "ready", "sql": "ready"}.items():
            one = await client.get(f"/ready/{name}")
            assert one.json() == {"status": status} and one.status_code == (200 if status == "ready" else 503)
        assert (await client.get("/ready/opus")).status_code == 404
        for name in ("large", "small"):
            behind.models.remove(name)
        assert (await client.get("/ready")).status_code == (await client.get("/health")).status_code == 503
        assert (await ask(client, "large")).status_code == 404


async def test_a_key_sees_the_models_that_it_may_use_and_no_others(tok: Tokenizer) -> None:
    bound = {"small": {"small"}, "large": {"large", "opus"}, "sql": {"sql"}, "alias": {"haiku"}, "none": {"x"}}
    keys = [named(name, models=frozenset(models)) for name, models in bound.items()]
    behind = Behind(tok, keyed(named("all"), *keys))
    seen = {
        "all": ["large", "haiku", "sql", "small", "slow", "broken"],
        "small": ["small"],
        "large": ["large", "haiku"],
        "sql": ["sql"],
        "alias": ["haiku"],
        "none": [],
    }
    async with client_of(behind) as client:
        assert (await client.get("/ready/small")).status_code == 200, "without a key"
        for key, names in seen.items():
            listed = (await client.get("/v1/models", headers=bearer(key))).json()["data"]
            assert [model["id"] for model in listed] == names
            for name in ("large", "haiku", "sql", "small", "opus"):
                answer = await ask(client, name, bearer(key))
                assert answer.status_code == (200 if name in names else 404)
                if name not in names:
                    hidden = set(seen["all"]) - set(names) - {name}
                    assert not any(repr(other) in answer.text for other in hidden)


async def test_metrics_and_recordings_say_the_model(tok: Tokenizer, tmp_path: Path) -> None:
    behind = Behind(tok, Settings(served_model_name="", recordings=RecordingOptions(tmp_path)))
    async with client_of(behind) as client, behind.app.router.lifespan_context(behind.app):
        for name in ("large", "small", "small", "opus"):
            await ask(client, name)
        lines = (await client.get("/metrics")).text.splitlines()
    for model, outcome in (("large", "stop"), ("small", "stop"), ("", "refused")):
        number = 2 if model == "small" else 1
        assert f'dovetail_requests_total{{api="chat",model="{model}",outcome="{outcome}"}} {number}.0' in lines
    assert 'dovetail_request_seconds_count{api="chat",model="small"} 2.0' in lines
    assert 'dovetail_model_ready{model="large"} 1.0' in lines and 'dovetail_model_ready{model="slow"} 0.0' in lines
    recordings = [decode(file.read_bytes(), file.name) for file in tmp_path.glob("*.json*")]
    assert sorted(each.model or "" for each in recordings) == ["", "large", "small", "small"]
    assert {each.tokenizer is not None for each in recordings if each.model} == {True}


async def test_what_is_passed_through_is_not_what_writes(behind: Behind) -> None:
    async with client_of(behind) as client:
        none = await client.post("/v1/embeddings", json={"model": "small", "input": "hi"})
        unknown = await client.post("/v1/rerank", json={"model": "opus", "query": "hi", "documents": []})
        form = await client.post("/v1/audio/transcriptions", data={"model": "small"}, files={"file": b"RIFF"})
        nameless = await client.post("/v1/audio/transcriptions", files={"file": b"RIFF"})
    assert (none.status_code, form.status_code) == (501, 501) and "'small' has no embeddings" in none.text
    assert unknown.status_code == 404 and "'small'" in unknown.text
    assert nameless.status_code == 400 and "no field model" in nameless.text


@pytest.mark.parametrize(
    "form",
    [
        b"--b\r\n" + b"Content-Disposition:" * 400_000 + b'; name="model"\r\n\r\nsmall\r\n--b--',
        b"--b\r\n\r\n\r\n" * 400_000 + b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="models"\r\n\r\nsmall\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall',
    ],
    ids=["endless header", "endless fields", "another name", "no end"],
)
async def test_forms_without_a_model_that_can_be_found(behind: Behind, form: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with client_of(behind) as client:
        answer = await client.post("/v1/audio/transcriptions", content=form, headers=headers)
    assert answer.status_code == 400 and "no field model" in answer.text


async def test_a_form_is_no_json(behind: Behind) -> None:
    async with client_of(behind) as client:
        wrong = await client.post("/v1/audio/transcriptions", json={"model": "small"})
    assert wrong.status_code == 415
