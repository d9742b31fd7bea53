"""Several asynchronous streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """The items of all `streams` as they come. At most one item of each stream is read ahead.

    When a stream fails, when this generator is closed or when its task is cancelled, all streams are closed before the
    caller gets the exception.
    """
    pending: dict[asyncio.Task[T], AsyncGenerator[T]] = {}
    idle = list(streams)
    try:
        while idle or pending:
            pending |= {asyncio.create_task(_next(stream)): stream for stream in idle}
            idle.clear()
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task.done()]:
                stream = pending.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                yield item
                idle.append(stream)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams), return_exceptions=True)


async def _next(stream: AsyncGenerator[T]) -> T:
    return await anext(stream)
