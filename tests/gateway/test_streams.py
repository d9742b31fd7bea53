"""Merged streams keep the order of each stream, and a failure closes all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.gateway.turn.streams import merge


class Stream:
    """Yields numbers from 0, after `waits` turns of the event loop each. `at`: how many were requested."""

    def __init__(self, waits: list[int], error: Exception | None = None) -> None:
        self.at = 0
        self.closed = False
        self._waits = waits
        self._error = error

    async def items(self, name: int) -> AsyncGenerator[tuple[int, int]]:
        try:
            for number, times in enumerate(self._waits):
                self.at += 1
                for _ in range(times):
                    await asyncio.sleep(0)
                yield name, number
            if self._error is not None:
                raise self._error
        finally:
            await asyncio.sleep(0)
            self.closed = True


WAITS = st.lists(st.integers(0, 3), max_size=6)


@settings(deadline=None)
@given(st.lists(WAITS, min_size=1, max_size=5), st.integers(0, 12))
def test_items_stay_in_order_and_one_is_read_ahead(waits: list[list[int]], leave_after: int) -> None:
    streams = [Stream(w) for w in waits]
    total = sum(map(len, waits))

    async def read() -> None:
        taken: list[tuple[int, int]] = []
        everything = merge([stream.items(name) for name, stream in enumerate(streams)])
        async for item in everything:
            taken.append(item)
            for name, stream in enumerate(streams):
                assert stream.at <= sum(of == name for of, _ in taken) + 1
            if len(taken) == leave_after:
                break
        await everything.aclose()
        assert len(asyncio.all_tasks()) == 1
        if leave_after == 0 or leave_after > total:
            assert len(taken) == total
        for name in range(len(waits)):
            assert [number for of, number in taken if of == name] == list(range(sum(of == name for of, _ in taken)))

    asyncio.run(read())
    assert all(stream.closed or not stream.at for stream in streams)


def test_a_failure_ends_the_other_streams() -> None:
    streams = [Stream([0, 1]), Stream([0], ValueError("here")), Stream([0, 10**9])]

    async def read() -> None:
        with pytest.raises(ValueError, match="here"):
            async for _ in merge([stream.items(name) for name, stream in enumerate(streams)]):
                pass
        assert all(stream.closed for stream in streams)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(read())


def test_cancelling_the_reader_closes_every_stream() -> None:
    streams = [Stream([10**9]), Stream([0, 10**9])]

    async def read() -> None:
        async for _ in merge([stream.items(name) for name, stream in enumerate(streams)]):
            pass

    async def main() -> None:
        reading = asyncio.create_task(read())
        while not all(stream.at for stream in streams):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert all(stream.closed for stream in streams)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_slow_stream_does_not_delay_the_others() -> None:
    async def read() -> None:
        slow, quick = Stream([10**9]), Stream([0] * 5)
        everything = merge([slow.items(0), quick.items(1)])
        assert [await anext(everything) for _ in range(5)] == [(1, number) for number in range(5)]
        await everything.aclose()
        assert slow.closed

    asyncio.run(read())
