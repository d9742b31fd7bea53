"""Log probabilities in OpenAI's shape. test_one_code_path compares streams with whole answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dovetail.completion import Completion, TokenBatch, TokenLogprob
from dovetail.events import Message
from dovetail.gateway.turn.logprobs import Speller
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, ids_of, in_process, openai_client

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_every_token_has_a_log_probability_and_the_likeliest_tokens(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.ids = ids_of(Message("It rains. 🌧️", "Let me see…"), tok)
    async with openai_client(engine, tok) as client:
        for top in (0, 1, 20):
            answer = await client.chat.completions.create(**BODY, logprobs=True, top_logprobs=top)
            assert engine.seen[-1].logprobs == top
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None and logprobs.content is not None and logprobs.refusal is None
            assert answer.usage is not None and len(logprobs.content) == answer.usage.completion_tokens
            for token, entry in zip(engine.ids, logprobs.content, strict=True):
                assert (entry.token, bytes(entry.bytes or ())) == (tok.decode([token]), tok.token_bytes(token))
                assert entry.logprob == -token / 64
                likeliest = engine.logprob_of(token, top).top
                assert [(likely.token, likely.logprob) for likely in entry.top_logprobs] == [
                    (tok.decode([other]), logprob) for other, logprob in likeliest
                ]
        assert any("\ufffd" in entry.token for entry in logprobs.content), "no token was half a character"


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}], ids=str)
async def test_without_logprobs_the_field_is_null(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any]
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    async with in_process(engine, tok) as client:
        answer = (await client.post("/v1/chat/completions", json=BODY | fields)).json()
        streamed = await client.post("/v1/chat/completions", json=BODY | fields | {"stream": True})
    assert answer["choices"][0]["logprobs"] is None
    assert {event["choices"][0]["logprobs"] for event in events_of(streamed.text)[:-1]} == {None}
    assert engine.seen[0].logprobs is None


async def test_missing_log_probabilities_are_an_error(engine: ScriptedEngine, tok: Tokenizer) -> None:
    class Silent(ScriptedEngine):
        async def complete(self, completion: Completion) -> Any:
            yield TokenBatch(ids_of(Message("ok"), tok), "stop")

    async with in_process(Silent(tok), tok) as client:
        answer = await client.post("/v1/chat/completions", json=BODY | {"logprobs": True})
    assert answer.status_code == 500
    assert "log probabilities" in answer.json()["error"]["message"]


def test_a_token_without_text_or_without_probability(tok: Tokenizer) -> None:
    padding = tok.vocab_size + 5
    (entry,) = Speller(tok).spell([TokenLogprob(padding, -math.inf, ((tok.control["<|im_end|>"], -0.5),))])
    assert (entry.token, entry.bytes, entry.logprob) == ("", None, -9999.0)
    (likely,) = entry.top_logprobs
    assert (likely.token, bytes(likely.bytes or ())) == ("<|im_end|>", b"<|im_end|>")
