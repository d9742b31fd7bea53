"""A server for tests that starts and ends without waiting."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

_LOOK_S = 0.003


class BriefServer(uvicorn.Server):
    """uvicorn's server, which looks every 0.1 s whether it should end, and then waits 0.1 s for nothing: in hundreds of
    tests that is most of their time."""

    async def main_loop(self) -> None:
        looks = 0
        while not await self.on_tick(looks):
            looks += 1
            await asyncio.sleep(_LOOK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()
