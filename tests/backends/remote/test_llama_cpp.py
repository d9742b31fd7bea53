"""llama.cpp's dialect over a real connection, with answers as build 11312 writes them."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dovetail.backends.remote import RemoteEngine
from dovetail.completion import MetricSample, Sampling, TokenLogprob, total
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.grammar import Concat, ControlToken, ExactText, Grammar
from tests.backends.remote.fake import EOS, PROMPT, Answer, Fake, answered, completion, continuation, ids_of, run, sse

_TOO_LONG = (
    b'{"error":{"code":400,"message":"request (1100 tokens) exceeds the available context size (512 tokens), try '
    b'increasing it","type":"exceed_context_size_error","n_prompt_tokens":1100,"n_ctx":512}}'
)
_NO_LLGUIDANCE = (
    b'{"error":{"code":400,"message":"Failed to initialize samplers: failed to parse grammar: llguidance is not '
    b'enabled","type":"invalid_request_error"}}'
)
_METRICS = b"""# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 260
llamacpp:prompt_tokens_cached_total 7
llamacpp:n_decode_total 70
llamacpp:spec_decode_num_draft_tokens_total 483
llamacpp:spec_decode_num_accepted_tokens_total 473
llamacpp:spec_decode_num_drafts_total 123
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 122
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 120
"""


def event_of(ids: Sequence[int], predicted: int, content: str = "x", **fields: Any) -> bytes:
    known = {"index": 0, "content": content, "tokens": list(ids), "stop": False, "id_slot": -1}
    return sse(known | {"tokens_predicted": predicted, "tokens_evaluated": 3} | fields)


def ending(predicted: int, stop_type: str, **fields: Any) -> bytes:
    timings = {"cache_n": 2, "prompt_n": 1, "predicted_n": predicted} | fields
    return event_of([], predicted, "", stop=True, stop_type=stop_type, truncated=False, timings=timings)


def saying(*pieces: bytes) -> Answer:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return answer


async def counting(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield event_of([0], 0, "", prompt_progress={})  # ids of an event about the prompt are none
    for at, token in enumerate(continuation(body["prompt"], body["n_predict"])):
        yield event_of([token], at + 1)
    yield ending(body["n_predict"], "limit", draft_n=6, draft_n_accepted=4)


def test_a_stream() -> None:
    batches = answered("llamacpp", counting)
    assert ids_of(batches) == continuation(PROMPT, 8)
    last = batches[-1]
    assert (last.finish, last.cached, last.drafted, last.accepted) == ("length", 2, 6, 4)


def test_the_request_to_the_server() -> None:
    def check(fake: Fake) -> None:
        assert fake.received == [
            {
                "prompt": [5, 6, 7],
                "n_predict": 8,
                "stream": True,
                "return_tokens": True,
                "cache_prompt": True,
                "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
                "temperature": 0.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "repeat_penalty": 1.0,
                "repeat_last_n": 11,
                "seed": 2**32 - 2,
                "grammar": '%llguidance {}\nstart: "yes" <[2]>\nINDEX: /0|[1-9][0-9]{0,8}/\nTEXT: /(.|\\n)+/\n',
            }
        ]

    grammar = Grammar(Concat((ExactText("yes"), ControlToken("[end]"))))
    fields = {"sampling": Sampling(0, seed=-1), "grammar": grammar}
    assert answered("llamacpp", saying(event_of([EOS], 1, ""), ending(1, "eos")), fields, check)[-1].finish == "stop"
    with pytest.raises(InvalidRequest, match="cannot constrain"):
        answered("llamacpp", counting, {"grammar": Grammar(ControlToken("[other]"))})


def test_a_server_without_llguidance_gets_gbnf_and_forbids_the_other_control_tokens() -> None:
    def check(fake: Fake) -> None:
        (body,) = fake.received
        assert body["grammar"] == 'root ::= ("yes" <[91]>)\n'
        assert body["logit_bias"] == [[5, -2.0], [92, False]]  # not the ends, of which llama.cpp needs one

    grammar = Grammar(Concat((ExactText("yes"), ControlToken("[mark]"))))
    fields = {"grammar": grammar, "sampling": Sampling(logit_bias={5: -2.0})}
    assert answered("llamacpp", counting, fields, check, nothing=(400, _NO_LLGUIDANCE))


@pytest.mark.parametrize("end", ["<|call|>", "[end]"])
@pytest.mark.parametrize("required", [True, False])
def test_a_grammar_that_goes_on_after_an_end_is_refused_or_left_out(required: bool, end: str) -> None:
    """Else there is no token that llama.cpp could choose, and it aborts."""

    def check(fake: Fake) -> None:
        assert all("grammar" not in body for body in fake.received)

    fields = {"grammar": Grammar(Concat((ControlToken(end), ExactText("x")))), "grammar_required": required}
    asked = functools.partial(answered, "llamacpp", counting, fields, check, nothing=(400, _NO_LLGUIDANCE))
    if required:
        with pytest.raises(InvalidRequest, match=re.escape(f"ends an answer at {end}")):
            asked()
    else:
        assert asked()


def test_a_server_that_reads_no_grammar_is_sent_none() -> None:
    props = {"default_generation_settings": {"n_ctx": 512}, "model_alias": "m"}

    def check(fake: Fake) -> None:
        assert fake.received == []

    requested = {"grammar": Grammar(ExactText("yes"))}
    # One that is older may die of the question.
    for build in ("b9994-14d3ba45", "b1-0c1e570", "unknown", ""):
        with pytest.raises(InvalidRequest, match="may abort at a grammar"):
            answered(
                "llamacpp", counting, requested, check, props=props | {"build_info": build}, nothing=(400, b"asked")
            )
        assert answered("llamacpp", counting, props=props | {"build_info": build})


def test_a_grammar_that_is_not_required_is_left_out() -> None:
    def check(fake: Fake) -> None:
        (body,) = fake.received
        assert "grammar" not in body

    fields = {"grammar": Grammar(ExactText("yes")), "grammar_required": False}
    props = {"default_generation_settings": {"n_ctx": 512}, "model_alias": "m", "build_info": "b9994-14d3ba45"}
    assert answered("llamacpp", counting, fields, check, props=props)


def test_a_server_that_closes_its_connections_is_not_lost() -> None:
    async def main() -> None:
        async with Fake("llamacpp", counting) as fake:
            engine = RemoteEngine([fake.server()])
            await engine.start()
            for _ in range(20):
                assert [batch async for batch in engine.complete(completion())][-1].finish == "length"
            assert total(engine.gauges(), "resent_total") == 0
            posts = [head for head in fake.headers if head.startswith("POST /completion ")]
            assert len(posts) == 21 and all("connection: close" in head.lower() for head in posts)
            await engine.stop()

    run(main)


def test_ids_that_are_left_out_are_found_in_the_text() -> None:
    answer = saying(event_of([10], 1), event_of([22], 3, " 😂"), ending(3, "limit"))

    def tokenize(body: dict[str, Any]) -> object:
        assert body == {"content": " 😂", "add_special": False, "parse_special": False}
        return {"tokens": [21, 22]}

    assert ids_of(answered("llamacpp", answer, tokenize=tokenize)) == [10, 21, 22]
    # SentencePiece's tokenizers put a space before it.
    assert ids_of(answered("llamacpp", answer, tokenize={"tokens": [9, 21, 22]})) == [10, 21, 22]


def test_ids_that_are_left_out_may_be_another_spelling() -> None:
    answer = saying(event_of([10], 1), event_of([22], 4, "😂"), ending(4, "limit"))

    def detokenize(body: dict[str, Any]) -> object:
        return {"content": "😂" if body["tokens"] in ([20], [20, 21]) else "other"}

    for tokens, ids in (([20], [20]), ([20, 21], [20, 21]), ([9, 20, 21], [20, 21])):
        pages: dict[str, Any] = {"tokenize": {"tokens": tokens}, "detokenize": detokenize}
        assert ids_of(answered("llamacpp", answer, **pages)) == [10, *ids]
    for pages in (
        {"tokenize": {"tokens": [1, 2, 3, 4, 5]}, "detokenize": {"content": "😂"}},  # more than there were
        {"tokenize": {"tokens": [30]}, "detokenize": detokenize},
        {"tokenize": {"tokens": []}},
        {},
    ):
        with pytest.raises(EngineError, match="omitted ids"):
            answered("llamacpp", answer, **pages)


def test_bytes_that_are_no_character_are_left_out() -> None:
    answer = saying(event_of([10], 1), event_of([11], 3, "\ufffda"), ending(3, "limit"))
    assert ids_of(answered("llamacpp", answer, tokenize={"tokens": [1, 2, 3, 11]})) == [10, 11]


@pytest.mark.parametrize(
    ("predicted", "stop_type", "finish"), [(2, "eos", "stop"), (4, "eos", "stop"), (3, "limit", "length")]
)
def test_fields_missing_in_the_last_event_are_computed(predicted: int, stop_type: str, finish: str) -> None:
    """An end token behind half a character, and a character that the limit cut."""
    batches = answered("llamacpp", saying(event_of([10], 1), ending(predicted, stop_type)))
    assert ids_of(batches) == [10] and batches[-1].finish == finish


def test_draft_counts_come_after_the_end_of_the_turn() -> None:
    batches = answered(
        "llamacpp", saying(event_of([10], 1), event_of([EOS], 2, ""), ending(2, "eos", draft_n=4, draft_n_accepted=1))
    )
    last = batches[-1]
    assert (last.ids, last.finish, last.cached, last.drafted, last.accepted) == ((10, EOS), "stop", 2, 4, 1)
    # One that goes on does not know this end of a turn, and is not read further.
    batches = answered("llamacpp", saying(event_of([10], 1), *(event_of([EOS], at, "") for at in range(2, 8))))
    assert (ids_of(batches), batches[-1].finish) == ([10, EOS], "stop")


def test_log_probabilities_are_not_streamed() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        assert (body["stream"], body["n_probs"]) == (False, 2)
        top = [{"id": 3, "logprob": -0.5, "token": "a", "bytes": []}, {"id": 10, "logprob": -1.0}]
        probabilities = [
            {"id": 10, "logprob": -1.0, "top_logprobs": top},
            {"id": 11, "logprob": -2.0, "top_logprobs": top},
        ]
        event = event_of([10, 11], 2, stop=True, stop_type="limit", completion_probabilities=probabilities)
        yield event.removeprefix(b"data: ").strip()

    (batch,) = answered("llamacpp", answer, {"logprobs": 2})
    assert batch.ids == (10, 11)
    top = ((3, -0.5), (10, -1.0))
    assert batch.logprobs == (TokenLogprob(10, -1.0, top), TokenLogprob(11, -2.0, top))


@pytest.mark.parametrize(
    "probabilities",
    [
        [{"id": 10, "logprob": 0.0, "top_logprobs": []}],  # a token that was drafted
        [],  # one after which a character is incomplete
    ],
)
def test_log_probabilities_that_are_not_told(probabilities: list[object]) -> None:
    event = event_of([10], 1, stop=True, stop_type="limit", completion_probabilities=probabilities)
    with pytest.raises(InvalidRequest, match="does not report all log probabilities"):
        answered("llamacpp", saying(event.removeprefix(b"data: ").strip()), {"logprobs": 0})


def test_metrics() -> None:
    async def main() -> None:
        async with Fake("llamacpp", counting, metrics=(200, _METRICS)) as fake:
            server = fake.server()
            await server.open()
            await server.measure()
            assert server.gauges() == [
                MetricSample("running", {}, 1),
                MetricSample("waiting", {}, 2),
                MetricSample("prompt_tokens_total", {}, 260),
                MetricSample("prompt_tokens_cached_total", {}, 7),
                MetricSample("steps_total", {}, 70),
                MetricSample("drafts_total", {}, 123),
                MetricSample("drafted_total", {}, 483),
                MetricSample("accepted_total", {}, 473),
                MetricSample("accepted_per_position_total", {"position": "0"}, 122),
                MetricSample("accepted_per_position_total", {"position": "1"}, 120),
            ]
            await server.close()

    run(main)


def test_metrics_that_are_off() -> None:
    gauges: list[MetricSample] = []
    off = (501, b'{"error":{"code":501,"message":"This server does not support metrics endpoint."}}')
    answered("llamacpp", counting, gauges=gauges, metrics=off)
    assert gauges == [MetricSample("drafted_total", {}, 6), MetricSample("accepted_total", {}, 4)]


def test_a_router_is_none() -> None:
    router = {"role": "router", "default_generation_settings": {"params": None, "n_ctx": 0}, "build_info": "b11312-0"}
    with pytest.raises(EngineError, match="router"):
        answered("llamacpp", counting, props=router)


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (ending(0, "none"), "ended the answer: none"),
        (sse({"error": {"message": "Context size has been exceeded.", "code": 500}}), "Context size"),
        (event_of([10], 1), "before the last token"),
    ],
)
def test_other_answers_are_errors(piece: bytes, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        answered("llamacpp", saying(piece))


def test_a_prompt_that_is_too_long() -> None:
    with pytest.raises(ContextExceeded, match=r"1100 tokens"):
        answered("llamacpp", counting, completion=(400, _TOO_LONG))
