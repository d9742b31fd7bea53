"""Servers whose requests and responses are passed through as they are, such as a vLLM with embeddings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from dovetail.backends.remote.dialect import Models, read
from dovetail.backends.remote.engine import POLL_S
from dovetail.backends.remote.errors import NoServer, ServerLost
from dovetail.backends.remote.http import Http, split_address
from dovetail.completion import MetricSample
from dovetail.errors import EngineError, EngineTimeout

_log = logging.getLogger(__name__)
_SILENCE_S = 30.0  # as of `Server`


class RelayedServers:
    """Servers at the URLs `addresses`, which all have the same model, with what `passes` says.

    `key`: the bearer token that they expect. Requests go to the servers that are up, in turn. One that was not sent
    goes to the next server.
    """

    def __init__(
        self, addresses: Sequence[str], passes: tuple[str, ...], key: str | None, most_s: float = 300.0
    ) -> None:
        self.passes = passes
        self._addresses = [split_address(address) for address in addresses]
        self._key, self._most_s = key, most_s
        self._servers: dict[str, Http] = {}
        self._up: list[str] = []
        self._watching: asyncio.Task[None] | None = None
        #: The servers' own name for the model.
        self.model = ""

    async def start(self) -> None:
        """Connect. Raises `EngineError` if no server is up, or one has no model."""
        self._servers = {name: Http(base, name, self._key, _SILENCE_S) for base, name in self._addresses}
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.stop)
            await self._look()
            if not self._up:
                raise EngineError(f"{', '.join(self._servers)}: no engine answers")
            models: Models = await read(self._up[0], self._servers[self._up[0]].page, "/v1/models", Models)
            own = next((model for model in models.data if model.parent is None), None)
            if own is None:
                raise EngineError(f"{self._up[0]} lists no model")
            self.model = own.id
            self._watching = asyncio.create_task(self._watch())
            undo.pop_all()

    async def stop(self) -> None:
        """End what runs, and close the connections."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        self._up = []

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._look()

    async def _look(self) -> None:
        healthy = await asyncio.gather(*(server.healthy() for server in self._servers.values()))
        up = [name for name, well in zip(self._servers, healthy, strict=True) if well]
        if set(up) != set(self._up) and self._watching is not None:
            _log.warning("engines that answer: %s", ", ".join(up) or "none")
        self._up = up

    async def passed(self, path: str, data: bytes, content_type: str) -> tuple[int, str, str | None, bytes]:
        """The status, content type, Retry-After and body of an answer. Raises `EngineError`, which is private."""
        try:
            async with asyncio.timeout(self._most_s):
                return await self._post(path, data, content_type)
        except TimeoutError:
            error: EngineError = EngineTimeout(f"{path}: no answer in {self._most_s:g} seconds")
        except EngineError as failure:
            error = failure
        error.private = True
        raise error

    async def _post(self, path: str, data: bytes, content_type: str) -> tuple[int, str, str | None, bytes]:
        for name in [*self._up]:
            if name in self._up:  # the next request begins with another one
                self._up.append(self._up.pop(self._up.index(name)))
            server = self._servers[name]
            try:
                status, headers, body = await server.pass_on(path, data, content_type, server.healthy)
            except ServerLost as error:
                if error.sent:
                    raise
                _log.warning("%s; the request goes to the next engine", error.message)
                continue
            return status, headers.get("Content-Type", "application/json"), headers.get("Retry-After"), body
        raise NoServer(f"{', '.join(self._servers)}: no engine answers")

    def gauges(self) -> list[MetricSample]:
        """`up`: whether a server is."""
        return [MetricSample("up", {}, bool(self._up))]
