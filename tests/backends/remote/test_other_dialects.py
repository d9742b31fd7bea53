"""SGLang's and llama.cpp's dialects over a real connection, as their sources have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from dovetail.completion import Sampling, TokenBatch, TokenLogprob
from dovetail.errors import ContextExceeded, EngineBusy, EngineError, InvalidRequest
from dovetail.grammar import Control, Grammar, Literal
from dovetail.grammar import Sequence as Then
from tests.backends.remote.fake import EOS, PROMPT, Answer, Fake, completion, continuation, ids_of, run, sse, whole

_SPECULATES = {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}


def answered(
    owner: str,
    answer: Answer,
    asked: dict[str, Any] | None = None,
    check: Callable[[Fake], None] | None = None,
    **pages: Any,
) -> list[TokenBatch]:
    found: list[TokenBatch] = []

    async def main() -> None:
        async with Fake(owner, answer, **pages) as fake:
            server = fake.server()
            try:
                await server.open()
                found.extend(await whole(server, completion(**asked or {})))
                if check is not None:
                    check(fake)
                gauges.update(server.gauges())
            finally:
                await server.close()

    gauges.clear()
    run(main)
    return found


gauges: dict[str, float] = {}


def sglang(ids: Sequence[int], total: int, finish: dict[str, Any] | None = None, **meta: Any) -> bytes:
    known = {"completion_tokens": total, "cached_tokens": 2, "finish_reason": finish, "id": "x", "prompt_tokens": 3}
    return sse({"text": "…", "output_ids": list(ids), "meta_info": known | meta})


def test_sglang_sends_all_or_what_is_new() -> None:
    for incremental in (False, True):

        async def answer(body: dict[str, Any], incremental: bool = incremental) -> AsyncIterator[bytes]:
            ids = continuation(body["input_ids"], body["sampling_params"]["max_new_tokens"])
            for end in range(2, len(ids) + 1, 2):
                finish = {"type": "length", "length": len(ids)} if end == len(ids) else None
                yield sglang(ids[end - 2 if incremental else 0 : end], end, finish)
            yield sse(b"[DONE]")

        batches = answered("sglang", answer)
        assert ids_of(batches) == continuation(PROMPT, 8)
        assert [len(batch.ids) for batch in batches] == [2] * 4
        assert (batches[-1].finish, batches[-1].cached, batches[-1].drafted) == ("length", 2, 0)


def test_what_sglang_is_asked() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([EOS], 1, {"type": "stop", "matched": EOS})

    def check(fake: Fake) -> None:
        assert fake.asked == [
            {
                "rid": "dovetail-0",
                "input_ids": [5, 6, 7],
                "sampling_params": {
                    "max_new_tokens": 8,
                    "temperature": 0.5,
                    "top_p": 1.0,
                    "top_k": -1,
                    "min_p": 0.0,
                    "presence_penalty": 0.0,
                    "frequency_penalty": 0.0,
                    "repetition_penalty": 1.0,
                    "stop_token_ids": [EOS],
                    "no_stop_trim": True,
                    "skip_special_tokens": False,
                    "sampling_seed": 3,
                },
                "stream": True,
            }
        ]

    answered("sglang", answer, {"sampling": Sampling(0.5, seed=3)}, check)


def test_sglang_tells_of_its_drafts_place_by_place() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        meta = {
            "spec_num_proposed_drafts": 12,
            "spec_num_correct_drafts": 5,
            "spec_correct_drafts_histogram": [1, 1, 2],
        }
        yield sglang([9] * 8, 8, {"type": "length"}, **meta)

    (batch,) = answered("sglang", answer, server_info=_SPECULATES)
    assert (batch.drafted, batch.accepted) == (12, 5)
    assert gauges == {
        "drafted_total": 12,
        "accepted_total": 5,
        'accepted_per_position_total{position="0"}': 3,
        'accepted_per_position_total{position="1"}': 2,
    }

    async def untold(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([9], 1, {"type": "length"})

    (batch,) = answered("sglang", untold, server_info=_SPECULATES)
    assert batch.drafted is None


def test_sglangs_log_probabilities_have_ids() -> None:
    own = [[-1.0, 10, None], [-2.0, 11, None]]
    top = [[[-0.5, 3, None], [-1.0, 10, None]], [[-0.25, 4, None], [-0.5, 5, None]]]

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 2)
        yield sglang([10], 1, output_token_logprobs=own[:1], output_top_logprobs=top[:1])
        yield sglang([10, 11], 2, {"type": "length"}, output_token_logprobs=own, output_top_logprobs=top)

    batches = answered("sglang", answer, {"logprobs": 2})
    assert [batch.logprobs for batch in batches] == [
        (TokenLogprob(10, -1.0, ((3, -0.5), (10, -1.0))),),
        (TokenLogprob(11, -2.0, ((4, -0.25), (5, -0.5))),),
    ]

    async def wrong(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([10], 1, {"type": "length"}, output_token_logprobs=own[1:])

    with pytest.raises(EngineError, match="no event"):
        answered("sglang", wrong, {"logprobs": 0})


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "The input is longer than the model's context length", "code": 400}}, ContextExceeded),
        ({"error": {"message": "Failed to parse structural tag", "code": 400}}, InvalidRequest),
        ({"meta_info": {"finish_reason": {"type": "abort", "message": "queue full", "status_code": 503}}}, EngineBusy),
        ({"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}, EngineError),
    ],
)
def test_sglang_says_inside_the_stream_what_is_wrong(event: object, kind: type[Exception]) -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sse(event, b"[DONE]")

    with pytest.raises(kind):
        answered("sglang", answer)


def llama(ids: Sequence[int], predicted: int, content: str = "x", **fields: Any) -> bytes:
    return sse({"content": content, "tokens": list(ids), "tokens_predicted": predicted, "stop": False} | fields)


def ending(predicted: int, stop_type: str, **fields: Any) -> bytes:
    timings = {"prompt_n": 1, "predicted_n": predicted} | fields
    return llama([], predicted, "", stop=True, stop_type=stop_type, tokens_evaluated=3, timings=timings)


def test_llama_cpp_streams() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield llama([0], 0, "", prompt_progress={})  # ids of an event about the prompt are none
        for at, token in enumerate(continuation(body["prompt"], 8)):
            yield llama([token], at + 1)
        yield ending(8, "limit", draft_n=6, draft_n_accepted=4)

    batches = answered("llamacpp", answer)
    assert ids_of(batches) == continuation(PROMPT, 8)
    last = batches[-1]
    assert (last.finish, last.cached, last.drafted, last.accepted) == ("length", 2, 6, 4)


def test_what_llama_cpp_is_asked() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield llama([EOS], 1, "") + ending(1, "eos")

    def check(fake: Fake) -> None:
        assert fake.asked == [
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
                "repeat_last_n": -1,
                "seed": 2**32 - 2,
                "grammar": '%llguidance {}\nstart: "yes" <[2]>\nINDEX: /0|[1-9][0-9]{0,8}/\nTEXT: /(.|\\n)+/\n',
            }
        ]

    grammar = Grammar(Then((Literal("yes"), Control("[end]"))))
    fields = {"sampling": Sampling(0, seed=-1), "grammar": grammar}
    assert answered("llamacpp", answer, fields, check)[-1].finish == "stop"
    with pytest.raises(InvalidRequest, match="cannot be constrained"):
        answered("llamacpp", answer, {"grammar": Grammar(Control("[other]"))})


def test_ids_that_llama_cpp_leaves_out_are_found_in_the_text() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield llama([10], 1) + llama([22], 3, " 😂") + ending(3, "limit")

    def tokenize(body: dict[str, Any]) -> object:
        assert body == {"content": " 😂", "add_special": False, "parse_special": False}
        return {"tokens": [21, 22]}

    assert ids_of(answered("llamacpp", answer, tokenize=tokenize)) == [10, 21, 22]
    for other in ([22], [20, 21, 22], [22, 21]):
        with pytest.raises(EngineError, match="left out ids"):
            answered("llamacpp", answer, tokenize={"tokens": other})
    with pytest.raises(EngineError, match="left out ids"):
        answered("llamacpp", answer)


def test_an_end_token_that_llama_cpp_leaves_out_is_not_missed() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield llama([10], 1) + ending(2, "eos")

    batches = answered("llamacpp", answer)
    assert ids_of(batches) == [10] and batches[-1].finish == "stop"


def test_llama_cpp_does_not_stream_log_probabilities() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        assert (body["stream"], body["n_probs"]) == (False, 2)
        top = [{"id": 3, "logprob": -0.5, "token": "a", "bytes": []}, {"id": 10, "logprob": -1.0}]
        probabilities = [{"id": 10, "logprob": -1.0, "top_logprobs": top}, {"id": 11, "logprob": -2.0}]
        event = llama([10, 11], 2, stop=True, stop_type="limit", completion_probabilities=probabilities)
        yield event.removeprefix(b"data: ").strip()

    (batch,) = answered("llamacpp", answer, {"logprobs": 2})
    assert batch.ids == (10, 11)
    assert batch.logprobs == (TokenLogprob(10, -1.0, ((3, -0.5), (10, -1.0))), TokenLogprob(11, -2.0))


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (ending(0, "none"), "ended the answer: none"),
        (sse({"error": {"message": "context shift is disabled", "code": 500}}), "context shift"),
        (llama([10], 1), "in the middle"),
    ],
)
def test_what_llama_cpp_may_say_instead(piece: bytes, message: str) -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield piece

    with pytest.raises(EngineError, match=message):
        answered("llamacpp", answer)
