"""SGLang's dialect over a real connection, as in its source code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dovetail.completion import MetricSample, Sampling, TokenLogprob
from dovetail.errors import ContextExceeded, EngineBusy, EngineError, InvalidRequest
from tests.backends.remote.fake import EOS, PROMPT, Fake, answered, continuation, ids_of, sse

_SPECULATES = {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}


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
        assert (batches[-1].finish, batches[-1].cached, batches[-1].drafted) == ("length", 2, 0)


def test_the_request_to_sglang() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([EOS], 1, {"type": "stop", "matched": EOS})

    def check(fake: Fake) -> None:
        assert fake.received == [
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

    gauges: list[MetricSample] = []
    (batch,) = answered("sglang", answer, gauges=gauges, server_info=_SPECULATES)
    assert (batch.drafted, batch.accepted) == (12, 5)
    assert gauges == [
        MetricSample("drafted_total", {}, 12),
        MetricSample("accepted_total", {}, 5),
        MetricSample("accepted_per_position_total", {"position": "0"}, 3),
        MetricSample("accepted_per_position_total", {"position": "1"}, 2),
    ]

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
    assert [logprob for batch in batches for logprob in batch.logprobs] == [
        TokenLogprob(10, -1.0, ((3, -0.5), (10, -1.0))),
        TokenLogprob(11, -2.0, ((4, -0.25), (5, -0.5))),
    ]

    async def wrong(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sglang([10], 1, {"type": "length"}, output_token_logprobs=own[1:])

    with pytest.raises(EngineError, match="cannot be read"):
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
