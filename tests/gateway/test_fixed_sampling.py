"""`--fixed-sampling`: the model's own values are the defaults, and no others are taken, in every API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.checkpoints import fixed_sampling
from dovetail.errors import CheckpointError, InvalidRequest
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

FIXED = fixed_sampling.parse("temperature=0.6/0/1,top_p=0.95,top_k=20")
SETTINGS = Settings(served_model_name=MODEL, fixed_sampling=FIXED)
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "temperature"),
    [
        ({}, 0.6),
        ({"temperature": 0.6}, 0.6),
        ({"temperature": 0}, 0.0),
        ({"temperature": 1.0, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0, "n": 1}, 1.0),
        ({"temperature": None, "top_k": 20, "min_p": 0, "repetition_penalty": 1.0}, 0.6),
    ],
)
async def test_the_servers_values_are_used(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any], temperature: float
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok, SETTINGS) as client:
        response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, **fields})
    assert response.status_code == 200, response.text
    sampling = engine.seen[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, 0.95, 20)
    assert (sampling.min_p, sampling.presence_penalty, sampling.repetition_penalty) == (0, 0, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1.1),
        ("top_p", 0.8),
        ("top_k", 5),
        ("min_p", 0.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("n", 2),
    ],
)
async def test_another_value_is_refused_by_name(
    engine: ScriptedEngine, tok: Tokenizer, field: str, value: float
) -> None:
    async with in_process(engine, tok, SETTINGS) as client:
        response = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, field: value})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field and error["message"].startswith(f"{field} must be")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": USER, "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
    ],
)
async def test_every_api(engine: ScriptedEngine, tok: Tokenizer, path: str, body: dict[str, Any]) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok, SETTINGS) as client:
        refused = await client.post(path, json={"model": MODEL, **body, "temperature": 0.3})
        taken = await client.post(path, json={"model": MODEL, **body})
    assert refused.status_code == 400 and "temperature must be" in refused.text
    assert taken.status_code == 200 and engine.seen[-1].sampling.temperature == 0.6


@pytest.mark.parametrize(
    "text", ["", "heat=1", "temperature", "temperature=", "temperature=hot", "temperature=inf", ","]
)
def test_a_wrong_option_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"must be"):
        fixed_sampling.parse(text)


def test_the_values_of_a_checkpoint(tmp_path: Path) -> None:
    assert fixed_sampling.of_model(tmp_path) == {field: (value,) for field, value in fixed_sampling.NEUTRAL.items()}
    config = {"temperature": 0.6, "top_p": 0.95, "top_k": 40, "eos_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    values = fixed_sampling.of_model(tmp_path)
    assert (values["temperature"], values["top_p"], values["top_k"], values["n"]) == ((0.6,), (0.95,), (40,), (1,))
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_p": "much"}))
    with pytest.raises(CheckpointError, match="top_p must be a number"):
        fixed_sampling.of_model(tmp_path)
