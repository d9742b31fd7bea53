"""A server that drains ends the wait of requests that have no token yet."""

from __future__ import annotations

import asyncio

import pytest

from dovetail.errors import EngineBusy
from dovetail.gateway.limits.queue import Draining


def test_draining_ends_the_wait_for_a_first_step_and_nothing_else() -> None:
    async def main() -> None:
        draining, never = Draining(), asyncio.Event()

        async def late() -> None:
            raise TimeoutError("its own")

        assert await draining.first(asyncio.sleep(0, "step")) == "step"
        with pytest.raises(TimeoutError, match="its own"):
            await draining.first(late())
        waiting = asyncio.ensure_future(draining.first(never.wait()))
        await asyncio.sleep(0)
        draining.start()
        with pytest.raises(EngineBusy, match="shutting down"):
            await waiting

    asyncio.run(main())
