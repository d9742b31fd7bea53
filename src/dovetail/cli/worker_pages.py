"""The metrics of all workers on the page of each: workers ask each other over Unix sockets in a folder of their own.

prometheus_client's own way, files that all processes write, has no collectors; gauges of the engine and of the queue
are such.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator

from starlette.applications import Starlette

from dovetail.gateway.observe.worker_metrics import merged

#: Seconds in which a worker has to answer.
_ANSWER_S = 1.0
#: The most characters of a folder: the path of a Unix socket has at most 107 (Linux) or 103 (macOS).
_LONGEST = 90


class WorkerPages:
    """The pages of `count` workers, for worker `number`, whose sockets are in `folder`."""

    def __init__(self, folder: str, number: int, count: int) -> None:
        self.count = count
        self._folder = folder
        self._number = number

    @staticmethod
    @contextlib.contextmanager
    def folder() -> Iterator[str]:
        """A folder that only the user can enter."""
        parent = tempfile.gettempdir()
        with tempfile.TemporaryDirectory(
            prefix="dovetail-workers-", dir=parent if len(parent) < _LONGEST - 32 else "/tmp"
        ) as path:
            yield path

    @contextlib.asynccontextmanager
    async def served(self, app: Starlette) -> AsyncIterator[None]:
        """Show the metrics of all workers on the page of `app`, and its own to the others."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                writer.write(app.state.metrics_text())
                await writer.drain()

        path = self._path(self._number)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a worker that has died
        async with await asyncio.start_unix_server(answer, path):
            app.state.metrics_of_all = self._of_all
            yield

    async def _of_all(self, text: Callable[[], bytes]) -> bytes:
        others = [number for number in range(self.count) if number != self._number]
        pages = dict(zip(others, await asyncio.gather(*map(self._page, others)), strict=True))
        pages[self._number] = text()
        return merged({str(number): pages[number] for number in range(self.count)})

    async def _page(self, number: int) -> bytes | None:
        """The page of another worker; None if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                with contextlib.closing(writer):
                    return await reader.read(-1)
        except (OSError, TimeoutError):
            return None

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, str(number))
