"""`dovetail serve --models`: models start for themselves, come and go with the file, and some are passed through."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dovetail
from dovetail.cli.main import main
from dovetail.cli.serve import models_file, several_app
from dovetail.cli.several_models import ServedModels
from dovetail.errors import PlanError
from dovetail.gateway.limits.keys import ApiKey, KeyLimits, Keyring, digest_of
from dovetail.server.api_keys import NO_KEYS, ClientKeys
from tests.backends.remote.fake import Fake
from tests.gateway.scripted import serving_app

pytestmark = pytest.mark.anyio

DEMO = Path(dovetail.__file__).parent / "data" / "demo"
ONE = f"one:\n  target: {DEMO}/target\n  draft_tokens: 0\n  threads: 1\n  aliases: [haiku]\n"
TWO = f"two:\n  target: {DEMO}/target\n  draft_tokens: 0\n  threads: 1\n  context: 512\n  strict: off\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.yaml"


def arguments(file: Path, **options: Any) -> argparse.Namespace:
    values = {"response_store": "none", "memory": False, "model": None, "demo": None, "recipe": None, "config": None}
    return argparse.Namespace(**{**values, "models": str(file), **options})


@asynccontextmanager
async def served(file: Path, keys: ClientKeys = NO_KEYS) -> AsyncIterator[tuple[httpx.AsyncClient, ServedModels]]:
    """A real server of the file's models, whose engines stop at the end."""
    app, models = several_app(models_file(arguments(file)), keys, Console(quiet=True))
    async with (
        serving_app(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        with models:
            try:
                yield client, models
            finally:
                await models.stop()


async def status_of(client: httpx.AsyncClient, name: str, *expected: str) -> str:
    """The status of a model, once it is one of the expected ones."""
    while True:
        status: str = (await client.get(f"/ready/{name}")).json().get("status", "none")
        if status in expected:
            return status
        await asyncio.sleep(0.01)


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "max_tokens": 4,
        **fields,
    }


async def test_models_come_and_go_without_dropping_a_stream(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One model twice with other settings, and three that fail, each for itself."""
    caplog.set_level(logging.WARNING, "dovetail.serve")
    broken = "broken: {target: /nowhere}\n"
    away = f"away: {{target: {DEMO}/target, engine: 'http://127.0.0.1:9'}}\n"
    file.write_text(ONE + TWO + broken + away)
    async with served(file) as (client, models):
        assert {await status_of(client, name, "ready", "failed") for name in ("one", "two")} == {"ready"}
        assert {await status_of(client, name, "ready", "failed") for name in ("broken", "away")} == {"failed"}
        assert (await client.get("/ready")).status_code == 200
        lengths = {each["id"]: each["max_model_len"] for each in (await client.get("/v1/models")).json()["data"]}
        assert lengths == {"one": 4096, "haiku": 4096, "two": 512, "broken": None, "away": None}
        refused = await client.post("/v1/chat/completions", json=chat("broken"))
        assert refused.status_code == 503 and "there is no folder /nowhere" in refused.text
        unreachable = await client.post("/v1/chat/completions", json=chat("away"))
        assert unreachable.status_code == 503 and "cannot be reached" in unreachable.text

        long = chat("two", stream=True, max_tokens=200, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=long) as stream:
            lines = stream.aiter_lines()
            assert stream.status_code == 200 and (await anext(lines)).startswith("data: ")
            for text in (None, "", "one: {target: x/y, aliases: [one]}"):  # gone, empty, contradictory: nothing changes
                if text is None:
                    file.unlink()
                else:
                    file.write_text(text)
                await models.reload()
            assert await status_of(client, "one", "ready") == await status_of(client, "two", "ready")
            file.write_text(ONE.replace("haiku", "opus") + "three" + TWO.removeprefix("two"))
            await models.reload()
            for name in ("two", "broken"):
                gone = await client.post("/v1/chat/completions", json=chat(name))
                assert gone.status_code == 404 and "'three'" in gone.text
            assert await status_of(client, "three", "ready", "failed") == "ready"
            while (await client.post("/v1/chat/completions", json=chat("opus"))).status_code != 200:
                await asyncio.sleep(0.01)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]" and json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert (await client.post("/v1/chat/completions", json=chat("haiku"))).status_code == 404
        while "two has ended" not in caplog.messages:
            await asyncio.sleep(0.01)
    stays = [message for message in caplog.messages if message.startswith("the models stay as they were")]
    assert len(stays) == 3 and "cannot be read" in stays[0] and "must have an entry" in stays[1]
    assert "one: the name 'one' belongs to itself already" in stays[2]


class Embeddings:
    """The pages of a vLLM with embeddings that requests see, and what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        paths = ("/v1/embeddings", "/v1/audio/transcriptions")
        routes = [Route(path, self.answer, methods=["POST"]) for path in paths]
        models = {"data": [{"id": "BAAI/bge-m3", "owned_by": "vllm", "max_model_len": 8192}]}
        pages = {"/health": {}, "/v1/models": models}
        routes += [Route(path, self.page(content)) for path, content in pages.items()]
        self.app = Starlette(routes=routes)

    @staticmethod
    def page(content: Any) -> Any:
        async def send(request: Request) -> Response:
            return JSONResponse(content)

        return send

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.got.append((request.headers["content-type"], body))
        if b"too long" in body:
            return JSONResponse({"error": {"message": "too long"}}, 400)
        return JSONResponse({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}})


async def test_embeddings_are_passed_through_with_keys_and_limits(file: Path) -> None:
    engine, key = Embeddings(), ApiKey(name="a", digest=digest_of("s3cret"), limits=KeyLimits(requests_per_minute=7))
    keyring = Keyring([key])
    passes = "passes: [embeddings, rerank, transcriptions]"
    async with serving_app(engine.app) as url:
        file.write_text(f"bge: {{engine: '{url}', aliases: [BAAI/bge-m3], {passes}}}")
        async with served(file, ClientKeys(named=keyring)) as (client, _):
            assert await status_of(client, "bge", "ready", "failed") == "ready"
            body = {"model": "bge", "input": ["hi"], "dimensions": 8}
            assert (await client.post("/v1/embeddings", json=body)).status_code == 401
            client.headers["authorization"] = "Bearer s3cret"
            answer = await client.post("/v1/embeddings", json=body)
            assert answer.json()["data"] == [{"embedding": [0.5]}] and answer.headers["x-ratelimit-remaining-requests"]
            same = b'{"input":"hi",   "model":"BAAI/bge-m3"}'
            json_type = {"content-type": "application/json"}
            assert (await client.post("/v1/embeddings", content=same, headers=json_type)).status_code == 200
            refused = await client.post("/v1/embeddings", json={"model": "bge", "input": "too long"})
            assert (refused.status_code, refused.json()) == (400, {"error": {"message": "too long"}})
            audio = b"RIFF\r\n--" + bytes(9 << 20)
            heard = await client.post("/v1/audio/transcriptions", data={"model": "bge"}, files={"file": audio})
            assert heard.status_code == 200
            absent = await client.post("/v1/rerank", json={"model": "bge", "query": "a", "documents": ["b"]})
            assert absent.status_code == 501 and "has no /v1/rerank" in absent.text
            written = await client.post("/v1/chat/completions", json=chat("bge"))
            assert (
                written.status_code == 501 and "'bge' has embeddings and rerank and transcriptions only" in written.text
            )
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "bge"
            assert (await client.post("/v1/chat/completions", json=chat("x"))).status_code == 404
            assert (await client.post("/v1/embeddings", json=body)).status_code == 429
    assert json.loads(engine.got[0][1]) == {**body, "model": "BAAI/bge-m3"} and engine.got[1][1] == same
    media_type, form = engine.got[3]
    assert media_type.startswith("multipart/form-data; boundary=") and b"\r\n\r\nBAAI/bge-m3\r\n" in form
    assert audio in form, "more than other bodies may have"
    assert keyring.accounts[0].prompt_tokens == 9, "as the engine counts them"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "x/y"}, "--models has the models: leave MODEL"),
        ({"recipe": "none"}, "--models has the models: leave MODEL"),
        ({"strict": "off"}, "command line: strict belongs to a model"),
        ({"api_keys": "/nowhere"}, "there is no file /nowhere"),
    ],
)
def test_what_the_command_line_may_not_have_beside_the_file(file: Path, options: dict[str, Any], message: str) -> None:
    file.write_text(ONE)
    with pytest.raises(PlanError, match=message):
        models_file(arguments(file, **options))


def test_a_file_with_errors_is_refused_before_anything_starts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("one: {target: x/y, prot: 1}")
    assert main(["serve", "--models", str(file)]) == 2
    assert "one: there is no setting 'prot'; did you mean port?" in capsys.readouterr().err


async def test_adapters_of_an_engine_that_has_none_are_refused_when_it_is_known(file: Path) -> None:
    for owner, expected in (("vllm", "ready"), ("sglang", "failed")):
        async with Fake(owner, context=4096, tokenize=(404, b"")) as engine:
            entry = {"target": f"{DEMO}/target", "engine": engine.url, "strict": "off", "adapters": ["s"]}
            file.write_text(json.dumps({"one": entry}))
            async with served(file) as (client, _):
                assert await status_of(client, "one", "ready", "failed") == expected
                answer = await client.post("/v1/chat/completions", json=chat("s"))
    assert answer.status_code == 503 and "adapters need vLLM" in answer.text
