"""Events that have arrived become one batch; nothing waits for more; and streams take turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.backends.remote.http import SLICE, Turns
from dovetail.completion import TokenBatch, TokenLogprob
from dovetail.errors import EngineError
from tests.backends.remote.fake import EOS, Fake, answered, completion, ids_of, run, sse, until, vllm_chunk

_USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}


def in_pieces(*pieces: bytes, **requested: Any) -> list[TokenBatch]:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return answered("vllm", answer, {"max_tokens": 1000, **requested})


def scored(token: int, finish: str | None = None) -> dict[str, Any]:
    logprobs = {
        "tokens": [f"token_id:{token}"],
        "token_logprobs": [-float(token)],
        "top_logprobs": [{f"token_id:{token}": -float(token)}],
    }
    return vllm_chunk([token], finish, logprobs=logprobs)


def test_what_has_arrived_is_one_batch_up_to_a_slice() -> None:
    ids = [10 + at % 80 for at in range(2 * SLICE + 5)]
    batches = in_pieces(sse(*map(scored, ids[:-1]), scored(ids[-1], "length"), _USAGE), logprobs=1)
    assert ids_of(batches) == ids
    assert len(batches) < len(ids) and max(len(batch.ids) for batch in batches) <= SLICE
    scores = [logprob for batch in batches for logprob in batch.logprobs]
    assert scores == [TokenLogprob(token, -float(token), ((token, -float(token)),)) for token in ids]
    assert (batches[-1].finish, batches[-1].cached) == ("length", 2)
    assert {batch.finish for batch in batches[:-1]} == {None}


def test_nothing_waits_for_more() -> None:
    """A server that sends a token only when the one before has come through."""
    batches: list[TokenBatch] = []

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for sent in range(5):
            await until(lambda sent=sent: len(batches) == sent)  # type: ignore[misc]
            yield sse(vllm_chunk([10 + sent], "length" if sent == 4 else None))

    async def main() -> None:
        async with Fake(answer=answer) as fake:
            server = fake.server()
            await server.open()
            async for batch in server.complete(completion(5)):
                batches.append(batch)
            await server.close()

    run(main)
    assert [batch.ids for batch in batches] == [(10,), (11,), (12,), (13,), (14,)]


@settings(max_examples=20)
@given(
    events=st.lists(st.lists(st.integers(3, 99), max_size=3), max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    eos=st.booleans(),
)
def test_the_ids_do_not_depend_on_the_pieces(events: Sequence[list[int]], cuts: Sequence[int], eos: bool) -> None:
    chunks = [*map(vllm_chunk, events), vllm_chunk([EOS] if eos else [], "stop" if eos else "length")]
    page = sse(*chunks, _USAGE, b"[DONE]")
    ends = sorted({min(cut, len(page)) for cut in cuts} | {len(page)} - {0})
    pieces = [page[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]
    batches = in_pieces(*pieces)
    assert ids_of(batches) == [token for ids in events for token in ids] + [EOS] * eos
    assert (batches[-1].finish, batches[-1].cached) == ("stop" if eos else "length", 2)


@pytest.mark.parametrize("fault", [b"{", b'{"error": {"message": "it broke", "code": 500}}'])
def test_tokens_before_a_fault_come_first(fault: bytes) -> None:
    batches: list[TokenBatch] = []

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sse(vllm_chunk([10]), vllm_chunk([11]), fault)

    async def main() -> None:
        async with Fake(answer=answer) as fake:
            server = fake.server()
            await server.open()
            with pytest.raises(EngineError):
                async for batch in server.complete(completion(5)):
                    batches.append(batch)
            await server.close()

    run(main)
    assert ids_of(batches) == [10, 11]


def test_so_many_turns_an_iteration_in_the_order_of_arrival() -> None:
    iteration, taken = [0], []

    async def main() -> None:
        turns = Turns(3)
        loop = asyncio.get_running_loop()

        def count() -> None:
            iteration[0] += 1
            if len(taken) < 19:
                loop.call_soon(count)

        async def take(number: int) -> None:
            await turns.take()
            taken.append((iteration[0], number))

        count()
        tasks = [asyncio.ensure_future(take(number)) for number in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()  # it waits, and its turn goes to the next
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main)
    assert [number for _, number in taken] == [number for number in range(20) if number != 7]
    counts = [sum(at == each for at, _ in taken) for each in range(iteration[0] + 1)]
    assert max(counts) == 3


def test_alone_nobody_waits_for_a_turn() -> None:
    async def main() -> None:
        turns = Turns(1)
        for _ in range(5):
            taking = turns.take()
            with pytest.raises(StopIteration):
                taking.send(None)
            await asyncio.sleep(0)

    run(main)
