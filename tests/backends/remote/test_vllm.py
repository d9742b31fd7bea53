"""vLLM's dialect over a real connection: requests, answers, and every way in which they can fail."""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import llguidance
import pytest

import dovetail
from dovetail.backends.remote import Server, Vocabulary
from dovetail.backends.remote.dialect import Limits
from dovetail.backends.remote.errors import NotThere, ServerLost
from dovetail.backends.remote.llama_cpp import LlamaCpp
from dovetail.backends.remote.sglang import SGLang
from dovetail.backends.remote.vllm import VLLM
from dovetail.completion import Sampling, TokenBatch, TokenLogprob
from dovetail.errors import ContextExceeded, DovetailError, EngineBusy, EngineError, InvalidRequest, UnknownModel
from dovetail.grammar import Concat, ControlToken, ExactText, Grammar
from tests.backends.remote.fake import (
    EOS,
    PROMPT,
    VOCABULARY,
    Answer,
    Broken,
    Fake,
    completion,
    continuation,
    ids_of,
    run,
    sse,
    until,
    vllm_chunk,
    whole,
)

_USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}
_SPECULATES = b"".join(
    b'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="%d"} 0.0\n' % place for place in range(3)
)


def saying(*pieces: bytes) -> Answer:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return answer


def answered(*pieces: bytes, metrics: bytes = b"", **fields: Any) -> list[TokenBatch]:
    batches: list[TokenBatch] = []

    async def main() -> None:
        async with Fake(answer=saying(*pieces), metrics=(200, metrics)) as fake:
            server = fake.server()
            try:
                await server.open()
                batches.extend(await whole(server, completion(**fields)))
            finally:
                await server.close()

    run(main)
    return batches


def test_the_ids_come_as_they_are_made() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            batches = await whole(server, completion(8))
            assert ids_of(batches) == continuation(PROMPT, 8)
            assert {batch.finish for batch in batches[:-1]} <= {None} and batches[-1].finish == "length"
            assert server.limits is not None and server.limits.context == 512
            await server.close()

    run(main)


def test_the_request_to_the_server() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server(key="k3y")
            await server.open()
            sampling = Sampling(0.5, 0.9, 40, 0.1, 0.2, 0.3, 1.1, -7)
            await whole(server, completion(3, sampling=sampling, stop=("x",), logprobs=None, request_id="chat-1"))
            assert fake.received == [
                {
                    "model": "m",
                    "prompt": [5, 6, 7],
                    "max_tokens": 3,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "return_token_ids": True,
                    "request_id": "chat-1-0",
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "top_k": 40,
                    "min_p": 0.1,
                    "presence_penalty": 0.2,
                    "frequency_penalty": 0.3,
                    "repetition_penalty": 1.1,
                    "stop_token_ids": [EOS],
                    "seed": -7,
                }
            ]
            assert all("Authorization: Bearer k3y\r\n" in head for head in fake.headers)
            await server.close()

    run(main)


@pytest.mark.parametrize("asked", [True, False])
def test_it_ends_loops_itself_if_asked_to(asked: bool) -> None:
    async def main() -> None:
        async with Fake(answer=saying(sse(vllm_chunk([5], "repetition"), b"[DONE]"))) as fake:
            server = fake.server()
            await server.open()
            (batch,) = await whole(server, completion(ends_loops=asked))
            await server.close()
        sent = {"min_pattern_size": 64, "max_pattern_size": 64, "min_count": 32} if asked else None
        assert fake.received[0].get("repetition_detection") == sent
        assert (batch.ids, batch.finish) == ((5,), "length")

    run(main)


def test_a_grammar_goes_as_a_structural_tag() -> None:
    grammar = Grammar(Concat((ExactText("yes"), ControlToken("[end]"))))

    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            await whole(server, completion(grammar=grammar))
            tag = json.loads(fake.received[0]["structured_outputs"]["structural_tag"])
            assert tag == grammar.structural_tag(VOCABULARY.control) and tag["type"] == "structural_tag"
            with pytest.raises(InvalidRequest, match="cannot constrain"):
                await whole(server, completion(grammar=Grammar(ControlToken("[other]"))))
            await server.close()

    run(main)


def test_to_its_guidance_backend_a_grammar_goes_as_lark() -> None:
    grammar = Grammar(Concat((ExactText("yes"), ControlToken("<think>"))))
    vocabulary = Vocabulary(100, (EOS, 7), {"<think>": 9, "[end]": EOS, "[stop]": 7})

    async def main() -> None:
        async with Fake(backend="guidance") as fake:
            server = Server(fake.url, vocabulary)
            await server.open()
            await whole(server, completion(grammar=grammar))
            assert fake.received[0]["structured_outputs"].keys() == {"grammar"}
            text = fake.received[0]["structured_outputs"]["grammar"]
            assert text.startswith('start: "yes" <think> ((<[2]> | <[7]>))?\n')
            assert text.splitlines()[1:] == grammar.lark(vocabulary.control).splitlines()[1:]
            assert not llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(text))
            await server.close()

    run(main)


@pytest.mark.parametrize(
    ("backend", "grammar", "why"),
    [
        ("xgrammar", "structural_tag", None),
        ("guidance", "lark", None),
        (
            "slow",
            "lark",
            "The 'guidance' structured output backend only supports fast Hugging Face tokenizers "
            "(--grammar-backend xgrammar)",
        ),
    ],
)
def test_the_grammar_notation_is_detected_without_using_a_grammar(backend: str, grammar: Any, why: str | None) -> None:
    async def main() -> None:
        async with Fake(backend=backend) as fake:
            server = fake.server()
            await server.open()
            assert server.limits == Limits("m", 512, 0, why, grammar)
            assert fake.received == []
            if why is not None:
                with pytest.raises(InvalidRequest, match="this engine cannot constrain an answer: The 'guidance'"):
                    await whole(server, completion(grammar=Grammar(ExactText("yes"))))
            await server.close()

    run(main)


@pytest.mark.parametrize(("budgets", "bounds"), [("on", True), ("off", False), ("unknown", False)])
def test_budgets_of_reasoning_are_for_a_server_that_has_them(budgets: str, bounds: bool) -> None:
    """An older vLLM ignores the field, whatever its value."""

    async def main() -> None:
        async with Fake(budgets=budgets) as fake:
            server = fake.server()
            await server.open()
            assert server.info.bounds_reasoning is bounds
            assert fake.received == []
            await whole(server, completion(reasoning_budget=9))
            await whole(server, completion())
            sent = [body.get("thinking_token_budget") for body in fake.received]
            assert sent == [9 if bounds else None, None]
            await server.close()

    run(main)


@pytest.mark.parametrize("page", [(400, b"no"), (404, b""), (200, b"{}")])
def test_one_that_does_not_say_is_sent_tags(page: tuple[int, bytes]) -> None:
    async def main() -> None:
        async with Fake(**{"v1/completions": page}) as fake:
            server = fake.server()
            await server.open()
            assert server.limits == Limits("m", 512, 0)
            await server.close()

    run(main)


@pytest.mark.parametrize(
    ("path", "status"),
    [(path, status) for path in ("v1/completions", "tokenize") for status in (408, 429, 503)]
    + [("v1/completions", 500), ("v1/completions", 502)],
)
def test_one_that_cannot_say_now_is_asked_again(path: str, status: int) -> None:
    async def main() -> None:
        async with Fake(backend="guidance", **{path: (status, b"later")}) as fake:
            server = fake.server()
            with pytest.raises(ServerLost, match=f"cannot tell now .* HTTP status {status}: later"):
                await server.open()
            fake.pages |= {"/tokenize": {}, "/v1/completions": None}
            await server.open()
            assert server.limits == Limits("m", 512, 0, None, "lark")
            await server.close()

    run(main)


@pytest.mark.parametrize("page", [(400, b"no tokenizer"), (404, b""), (500, b"no tokenizer"), (501, b"")])
def test_one_without_a_tokenizer_is_sent_no_such_token(page: tuple[int, bytes]) -> None:
    def computed(body: dict[str, Any]) -> object:
        raise AssertionError(body)

    async def main() -> None:
        async with Fake(tokenize=page, **{"v1/completions": computed}) as fake:
            server = fake.server()
            await server.open()
            assert server.limits == Limits("m", 512, 0)
            assert not any(head.startswith("POST /v1/completions") for head in fake.headers)
            await server.close()

    run(main)


def test_a_response_format_goes_the_same_way() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    grammar = dovetail.format("hermes").grammar(response_format=response_format)

    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            await whole(server, completion(grammar=grammar))
            tag = json.loads(fake.received[0]["structured_outputs"]["structural_tag"])
            assert '"properties": {"a": {"type": "integer"}}' in json.dumps(tag)
            await server.close()

    run(main)


def test_a_chunk_may_hold_several_tokens_or_none() -> None:
    batches = answered(
        sse(vllm_chunk([10, 11, 12]), vllm_chunk([]), vllm_chunk([13])), sse(vllm_chunk([], "length"), _USAGE)
    )
    assert ids_of(batches) == [10, 11, 12, 13]
    assert (batches[-1].finish, batches[-1].cached) == ("length", 2)


def test_events_may_come_in_any_pieces() -> None:
    page = sse(vllm_chunk([10]), vllm_chunk([11, EOS], "stop"), _USAGE, b"[DONE]") + b": a comment\n\n"
    for size in (1, 7, 64):
        batches = answered(*(page[at : at + size] for at in range(0, len(page), size)))
        assert ids_of(batches) == [10, 11, EOS] and batches[-1].finish == "stop" and batches[-1].cached == 2


def test_an_end_token_ends_the_answer_whatever_the_server_makes_of_it() -> None:
    (batch,) = answered(sse(vllm_chunk([10, EOS, 11])), sse(vllm_chunk([12], "length")))
    assert batch.ids == (10, EOS) and batch.finish == "stop"


def test_log_probabilities_have_ids() -> None:
    logprobs = {
        "tokens": ["token_id:10", "token_id:11"],
        "token_logprobs": [-3.0, -0.5],
        "top_logprobs": [
            {"token_id:10": -3.0, "token_id:4": -0.1, "token_id:5": -2.0},
            {"token_id:11": -0.5, "token_id:9": -1.0},
        ],
        "text_offset": [0, 1],
    }
    (batch,) = answered(sse(vllm_chunk([10, 11], "length", logprobs=logprobs)), logprobs=2)
    assert batch.logprobs == (
        TokenLogprob(10, -3.0, ((4, -0.1), (5, -2.0))),
        TokenLogprob(11, -0.5, ((11, -0.5), (9, -1.0))),
    )
    (batch,) = answered(sse(vllm_chunk([10, 11], "length", logprobs=logprobs)), logprobs=0)
    assert batch.logprobs == (TokenLogprob(10, -3.0), TokenLogprob(11, -0.5))


def test_draft_counts_are_reported_or_unknown() -> None:
    end = sse(vllm_chunk([10, 11], "length"))
    event = {**_USAGE, "metrics": {"speculative_decoding": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 4}}}
    assert [(b.drafted, b.accepted) for b in answered(end, sse(event), metrics=_SPECULATES)] == [(6, 4)]
    assert [(b.drafted, b.accepted) for b in answered(end, sse(_USAGE), metrics=_SPECULATES)] == [(None, 0)]
    assert [(b.drafted, b.accepted) for b in answered(end, sse(_USAGE))] == [(0, 0)]
    # With the last batch and not before.
    batches = answered(sse(vllm_chunk([10])), sse(vllm_chunk([11], "length"), event), metrics=_SPECULATES)
    assert [(b.drafted, b.cached) for b in batches] == [(None, None)] * (len(batches) - 1) + [(6, 2)]
    # Less than nothing is not believed.
    event = {
        "choices": [],
        "metrics": {"speculative_decoding": {"num_draft_tokens": -6, "num_accepted_draft_tokens": 4}},
    }
    assert [(b.drafted, b.accepted) for b in answered(end, sse(event), metrics=_SPECULATES)] == [(None, 0)]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([sse(vllm_chunk([10])), b"data: {no json\n\n"], "an event that cannot be read"),
        ([sse(vllm_chunk([10])), b'data: {"x":' + b"[" * 100_000 + b"\n\n"], "an event that cannot be read"),
        ([b"data: " + b"x" * (1 << 20)] * 17, "bytes without an event"),
        ([b": a comment\n" * (1 << 16)] * 22, "bytes without an event"),
        ([sse(*[vllm_chunk([])] * 5000)], "events without a token"),
        ([sse(vllm_chunk([10], "\x1b[31mred"))], r"ended the answer: '\\x1b"),
        ([sse(vllm_chunk([10])), sse({"choices": 3})], "an event that cannot be read"),
        ([sse(vllm_chunk([10], token_ids=None))], "no token ids"),
        ([sse(vllm_chunk([10, 100]))], "beyond the vocabulary of 100"),
        ([sse(vllm_chunk([10, -1]))], "beyond the vocabulary of 100"),
        ([sse(vllm_chunk([10] * 5)), sse(vllm_chunk([10] * 4))], "more than the 8 tokens"),
        ([sse(vllm_chunk([10], "abort"))], "abort"),
        ([sse(vllm_chunk([10])), sse({"error": {"message": "boom", "code": 500}})], "boom"),
        ([sse(vllm_chunk([10])), sse(b"[DONE]")], "before the last token"),
        ([sse(vllm_chunk([10]))], "before the last token"),
        ([b"<html>"], "before the last token"),
    ],
)
def test_an_answer_that_is_none_is_an_error(pieces: list[bytes], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        answered(*pieces)


def scores(*entries: tuple[int, float | None, dict[str, float] | None]) -> dict[str, Any]:
    """Log probabilities as vLLM writes them: the token, its own, and the likeliest."""
    tokens, own, top = zip(*entries, strict=True)
    return {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": own, "top_logprobs": top}


OF_PROMPT = [(PROMPT[0], None, None), *((token, -1.0 - i, {"token_id:7": -0.5}) for i, token in enumerate(PROMPT[1:]))]


def test_the_log_probabilities_of_a_prompt_come_before_those_of_the_answer() -> None:
    first = vllm_chunk([10], logprobs=scores(*OF_PROMPT, (10, -0.25, {"token_id:10": -0.25})))
    last = vllm_chunk([11], "length", logprobs=scores((11, -2.0, {"token_id:10": -0.25, "token_id:11": -2.0})))
    of_prompt = tuple(TokenLogprob(token, -1.0 - i, ((7, -0.5),)) for i, token in enumerate(PROMPT[1:]))
    one, *more = answered(sse(first), sse(last), prompt_logprobs=1, logprobs=1)
    assert (one.prompt_logprobs, [batch.prompt_logprobs for batch in more]) == (of_prompt, [()] * len(more))
    own = [TokenLogprob(10, -0.25, ((10, -0.25),)), TokenLogprob(11, -2.0, ((10, -0.25),))]
    assert [logprob for batch in (one, *more) for logprob in batch.logprobs] == own
    one, *more = answered(sse(first), sse(last), prompt_logprobs=0)
    assert one.prompt_logprobs == tuple(TokenLogprob(entry.token, entry.logprob) for entry in of_prompt)
    assert not any(batch.logprobs for batch in (one, *more))


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        scores((10, -0.25, None)),
        scores(*OF_PROMPT),
        scores(*OF_PROMPT[1:], (10, -0.25, None)),
        scores(OF_PROMPT[0], *OF_PROMPT[:0:-1], (10, -0.25, None)),
    ],
)
def test_log_probabilities_that_are_not_the_prompts_are_an_error(logprobs: object) -> None:
    with pytest.raises(EngineError):
        answered(sse(vllm_chunk([10], "length", logprobs=logprobs)), prompt_logprobs=1, logprobs=1)


def test_which_servers_score_prompts() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            assert server.info.prompt_logprobs
            body = VLLM().body(completion(prompt_logprobs=2, logprobs=1), VOCABULARY, server.limits, "r")  # type: ignore[arg-type]
            assert (body["echo"], body["logprobs"]) == (True, 2)
            assert "echo" not in VLLM().body(completion(logprobs=1), VOCABULARY, server.limits, "r")  # type: ignore[arg-type]
            await server.close()

    run(main)
    assert not SGLang.scores_prompts and not LlamaCpp.scores_prompts


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"tokens": [], "token_logprobs": [], "top_logprobs": []},
        {"tokens": ["token_id:11"], "token_logprobs": [-1.0], "top_logprobs": [None]},
        {"tokens": ["ten"], "token_logprobs": [-1.0], "top_logprobs": [None]},
        {"tokens": ["token_id:" + "9" * 5000], "token_logprobs": [-1.0], "top_logprobs": [None]},
        {"tokens": ["token_id:10"], "token_logprobs": [None], "top_logprobs": [None]},
    ],
)
def test_log_probabilities_that_are_none_are_an_error(logprobs: object) -> None:
    with pytest.raises(EngineError, match="an event that cannot be read"):
        answered(sse(vllm_chunk([10], "length", logprobs=logprobs)), logprobs=1)


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, "This model's maximum context length is 512 tokens.", ContextExceeded, "maximum context length"),
        (400, "max_tokens=5000 cannot be greater than max_model_len=1024.", ContextExceeded, "max_model_len"),
        (400, "Grammar error: no such rule", InvalidRequest, "no such rule"),
        (422, "temperature must be less", InvalidRequest, "temperature"),
        (401, "Unauthorized", EngineError, "does not accept the API key.*--engine-api-key-file"),
        (404, "The model `x` does not exist.", NotThere, "does not exist"),
        (429, "Too many requests", EngineBusy, "Too many requests"),
        (503, "Loading model", EngineBusy, "Loading model"),
        (500, "Internal server error", EngineError, "HTTP status 500: Internal"),
        (302, "", EngineError, "HTTP status 302"),
        (500, "x" * 5000, EngineError, "x…"),
        (500, "a\x1b[2Jb\x00c", EngineError, r": a \[2Jb c$"),
        (500, '{"detail":' + "[" * 100_000, EngineError, "detail"),
    ],
)
def test_a_status_has_its_error(status: int, body: str, kind: type[DovetailError], message: str) -> None:
    for page in (body.encode(), json.dumps({"error": {"message": body, "code": status}}).encode()):

        async def main(page: bytes = page) -> None:
            async with Fake() as fake:
                server = fake.server()
                await server.open()
                fake.pages["/v1/completions"] = (status, page)
                with pytest.raises(kind, match=message) as caught:
                    await whole(server, completion())
                assert type(caught.value) is kind and len(caught.value.message) < 600
                await server.close()

        run(main)


def test_an_adapter_is_the_model_of_a_request() -> None:
    """One that is not loaded is an error of the client, who may have its name from another server."""

    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            assert server.info.adapters
            await whole(server, completion(adapter="sql"))
            assert fake.received[-1]["model"] == "sql"
            fake.pages["/v1/completions"] = (404, b'{"error": {"message": "The model `sql` does not exist."}}')
            with pytest.raises(UnknownModel, match="'sql' is not loaded in its engine now"):
                await whole(server, completion(adapter="sql"))
            await server.close()

    run(main)


def test_a_connection_that_breaks_loses_the_server() -> None:
    async def breaking(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sse(vllm_chunk([10]))
        raise Broken

    async def main() -> None:
        async with Fake(answer=breaking) as fake:
            server = fake.server()
            await server.open()
            with pytest.raises(ServerLost) as caught:
                await whole(server, completion())
            assert caught.value.sent and server.running == 0
            await fake.stop()
            with pytest.raises(ServerLost, match="cannot be reached") as caught:
                await whole(server, completion())
            assert not caught.value.sent
            await server.close()

    run(main)


@pytest.mark.slow
def test_silence_is_for_the_servers_health_to_judge() -> None:
    for early in (True, False):
        pauses = iter((0.5, 3600))  # the second ends with the request

        async def slow(
            body: dict[str, Any], early: bool = early, pauses: Iterator[float] = pauses
        ) -> AsyncIterator[bytes]:
            if early:
                yield sse(vllm_chunk([10]))
            await asyncio.sleep(next(pauses))
            yield sse(vllm_chunk([11], "length"))

        async def main(answer: Answer = slow) -> None:
            async with Fake(answer=answer) as fake:
                server = fake.server(silence_s=0.1)
                await server.open()
                assert ids_of(await whole(server, completion()))[-1] == 11
                fake.pages["/health"] = (503, b"")
                with pytest.raises(ServerLost, match="sent nothing"):
                    await whole(server, completion())
                fake.pages["/health"] = {}
                await server.close()

        run(main)


def test_closing_the_stream_closes_the_request() -> None:
    async def endless(body: dict[str, Any]) -> AsyncIterator[bytes]:
        while True:
            yield sse(vllm_chunk([10]))
            await asyncio.sleep(0.001)

    async def main() -> None:
        async with Fake(answer=endless) as fake:
            server = fake.server()
            await server.open()
            async with aclosing(server.complete(completion(10**6))) as batches:
                async for _ in batches:
                    break
            assert server.running == 0
            await until(lambda: not fake.running)
            task = asyncio.create_task(whole(server, completion(10**6)))
            await until(lambda: fake.running == 1)
            task.cancel()
            await until(lambda: not fake.running)
            await server.close()

    run(main)


def test_a_finished_answer_leaves_its_connection_to_the_next() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            for _ in range(3):
                await whole(server, completion())
            assert len(fake._tasks) == 1
            await server.close()

    run(main)


def test_a_constraint_must_have_its_grammar() -> None:
    with pytest.raises(InvalidRequest, match="needs the constraint as a grammar too"):
        answered(constraint=object())


def test_a_key_is_never_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Fake(**{"v1/models": (401, b'{"error":"Unauthorized"}')}) as fake:
            server = fake.server(key="s3cret")
            with pytest.raises(EngineError, match="does not accept the API key") as caught:
                await server.open()
            assert "s3cret" not in str(caught.value) + repr(server)
            await server.close()

    with caplog.at_level(logging.DEBUG):
        run(main)
    assert "s3cret" not in caplog.text


def test_a_byte_order_mark_costs_no_token() -> None:
    page = codecs.BOM_UTF8 + sse(vllm_chunk([10]), vllm_chunk([11], "length"), _USAGE, b"[DONE]")
    for size in (1, 2, 4, len(page)):
        batches = answered(*(page[at : at + size] for at in range(0, len(page), size)))
        assert ids_of(batches) == [10, 11] and batches[-1].cached == 2


@pytest.mark.parametrize(
    ("cached", "drafted", "accepted", "believed"),
    [
        (2, 6, 4, (2, 6, 4)),
        (99999999999, 6, 4, (0, 6, 4)),
        (2, 6, 7, (2, None, 0)),
        (2, 99999999999, 4, (2, None, 0)),
        (2, 99999999999, 99999999999, (2, None, 0)),
    ],
)
def test_counts_that_cannot_be_are_not_passed_on(cached: int, drafted: int, accepted: int, believed: Any) -> None:
    counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted}
    event = {
        "choices": [],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}},
        "metrics": {"speculative_decoding": counts},
    }
    (batch,) = answered(sse(vllm_chunk([10, 11], "length"), event), metrics=_SPECULATES)
    assert (batch.cached, batch.drafted, batch.accepted) == believed
