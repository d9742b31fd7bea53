"""Servers behind HTTP as one engine: who gets a request, and what becomes of it when a server is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext

from dovetail.backends.remote.counters import labelled
from dovetail.backends.remote.faults import ServerLost
from dovetail.backends.remote.routing import Affinity, choose
from dovetail.backends.remote.server import Server
from dovetail.backends.remote.suspects import Suspects
from dovetail.completion import Completion, EngineInfo, TokenBatch
from dovetail.errors import EngineBusy, EngineError, InvalidRequest

_log = logging.getLogger(__name__)

_POLL_S = 1.0
#: How often one request is sent that may take a server down with it, or looks as if it did.
_MOST_SENDS = 2


class RemoteEngine:
    """`servers` hold the same model and are this engine's alone: `stop` closes them.

    A request whose server is lost before a token came is sent again: to another, or, where none is up, to the first
    that comes back within `patience_s` seconds, as long as no more than `most_waiting` wait for that. A prompt that two
    servers died with goes to no third one, whoever sends it again, and is refused when one of them dies with it again.
    """

    def __init__(self, servers: Sequence[Server], *, patience_s: float = 60.0, most_waiting: int = 256) -> None:
        self._servers = {server.name: server for server in servers}
        if not servers or len(self._servers) < len(servers):
            raise EngineError("engine must name one server or several, each of them once")
        self._patience_s, self._most_waiting = patience_s, most_waiting
        self._affinity = Affinity()
        self._suspects = Suspects()
        self._alone = asyncio.Lock()
        self._watches: list[asyncio.Task[None]] = []
        self._info: EngineInfo | None = None
        self._some_up = asyncio.Event()
        self._waiting = self._resent = 0

    @property
    def servers(self) -> list[Server]:
        """Those that are up."""
        return self._up_but((), None)

    @property
    def info(self) -> EngineInfo:
        """The least of what the servers that were up at the start allow."""
        if self._info is None:
            raise EngineError("the engine is not running: start() comes first, and nothing after stop()")
        return self._info

    async def start(self) -> None:
        """Find the servers. Those that do not answer join later, if one does now. Raises `EngineError`.

        Closes them where it fails, or is cancelled.
        """
        if self._info is not None:
            raise EngineError("the engine was started already")
        servers = list(self._servers.values())
        async with AsyncExitStack() as undo:
            for server in servers:
                undo.push_async_callback(server.close)
            found = await self._open(servers)
            undo.pop_all()
        self._info = EngineInfo(
            min(each.context for each in found),
            found[0].vocab_size,
            found[0].eos_ids,
            max(each.draft_tokens for each in found),
            "lark" if all(each.enforces == "lark" for each in found) else "structural_tag",
        )
        for server in servers:
            server.least_context = self._info.context
        self._some_up.set()
        self._watches = [asyncio.create_task(self._watch(server)) for server in servers]

    async def _open(self, servers: Sequence[Server]) -> list[EngineInfo]:
        """What those allow that are up. Raises `EngineError` where none is, or one is not to be used."""
        opened = await asyncio.gather(*(server.open() for server in servers), return_exceptions=True)
        failed = [error for error in opened if error is not None]
        wrong = [error for error in failed if not isinstance(error, ServerLost)]
        if wrong:
            raise wrong[0]
        if len(failed) == len(servers):
            raise EngineError("; ".join(str(error) for error in failed))
        for error in failed:
            _log.warning("%s; it joins when it answers", error)
        return [server.info for server in servers if server.up]

    async def stop(self) -> None:
        """End running completions, each with `EngineBusy`, and close all connections."""
        self._info = None
        self._some_up.set()
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the continuation. Raises `ContextExceeded`, `InvalidRequest`, `EngineBusy` or `EngineError`; the last
        two are private, as they tell of addresses and what a server said."""
        try:
            async with aclosing(self._complete(completion)) as batches:
                async for batch in batches:
                    yield batch
        except (EngineBusy, EngineError) as error:
            error.private = True
            raise

    async def _complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        _ = self.info
        prompt = hash(completion.prompt)
        prefixes = self._affinity.prefixes(completion.prompt)
        full: set[str] = set()
        lost = sends = 0
        until = self._patience()
        while True:
            self._refuse_convicted(prompt)
            places = self._suspects.places(prompt)
            server = await self._server(prefixes, full, places, until)
            begun = False
            try:
                async with aclosing(self._from(server, completion, prompt)) as batches:
                    async for batch in batches:
                        begun = True
                        yield batch
                return
            except EngineBusy:
                full.add(server.name)
                # One that waited long in a queue is not put at the end of another.
                if begun or not self._up_but(full, places) or asyncio.get_running_loop().time() > until:
                    raise
            except ServerLost as error:
                if self._info is None:
                    raise EngineBusy("the engine is shutting down") from error
                full.add(server.name)
                lost, sends = lost + 1, sends + error.sent
                if lost == 1:
                    until = self._patience()  # it may have waited long in the server's own queue
                if begun:
                    raise EngineError(f"{error.message}, after the answer had begun") from error
                if sends == _MOST_SENDS:
                    raise EngineError(f"{error.message}, and so {sends} times with this request") from error
                if asyncio.get_running_loop().time() > until:
                    raise EngineBusy(error.message) from error
                self._resent += 1
                _log.warning("%s; the request is sent again", error.message)

    async def _from(self, server: Server, completion: Completion, prompt: int) -> AsyncGenerator[TokenBatch]:
        """What `server` answers. Where it is gone then, whatever it said is a `ServerLost`, and suspects are noted."""
        async with self._alone if self._suspects.alone(prompt) else nullcontext():
            # While this one waited, another may have been found out, or have taken the server with it.
            self._refuse_convicted(prompt)
            places = self._suspects.places(prompt)
            if not server.up or (places is not None and server.name not in places):
                raise ServerLost(f"{server.name} does not answer", sent=False)
            answered, deaths = False, self._suspects.deaths(server.name)
            self._suspects.enter(prompt, server.name)
            try:
                async with aclosing(server.complete(completion)) as batches:
                    async for batch in batches:
                        yield batch
                answered = True
            except EngineError as error:
                sent = not isinstance(error, ServerLost) or error.sent
                # What breaks off may be one connection, and what fails one answer.
                if sent and await server.healthy():
                    raise
                if sent and self._suspects.deaths(server.name) == deaths:
                    self._suspects.died(server.name)
                server.lost()
                self._tell()
                raise ServerLost(error.message, sent=sent) from error
            finally:
                self._suspects.leave(prompt, server.name, answered=answered)

    def _refuse_convicted(self, prompt: int) -> None:
        if self._suspects.convicted(prompt):
            # Not an error that clients send it again for.
            raise InvalidRequest("the engine died again and again of this prompt, so it is not sent any more")

    def gauges(self) -> dict[str, float]:
        """The servers' numbers, by the names that the embedded engine has for them, with a label `server` where there
        are several; `up`, which is whether a server is, `resent_total` and `waiting_for_server`."""
        servers = self._servers.values()
        found: dict[str, float] = {
            "up": any(server.up for server in servers),
            "resent_total": self._resent,
            "waiting_for_server": self._waiting,
        }
        for server in servers:
            if len(servers) == 1:
                found |= server.gauges()
                continue
            found[labelled("server_up", server=server.name)] = server.up
            found |= {labelled(name, server=server.name): value for name, value in server.gauges().items()}
        return found

    def _patience(self) -> float:
        """Until when to wait for a server."""
        return asyncio.get_running_loop().time() + self._patience_s

    def _up_but(self, full: Collection[str], places: Collection[str] | None) -> list[Server]:
        servers = (server for name, server in self._servers.items() if places is None or name in places)
        return [server for server in servers if server.up and server.name not in full]

    async def _server(
        self, prefixes: Sequence[int], full: set[str], places: Collection[str] | None, until: float
    ) -> Server:
        """Who gets the request, of `places` if there are any; waits for somebody to be up. Raises `EngineBusy`."""
        while not (up := self._up_but(full, places)):
            self._tell()
            await self._wait(places, until)
            full.clear()
        loads = {server.name: (server.running, server.sent) for server in up}
        server = self._servers[choose(loads, self._affinity.candidates(prefixes))]
        self._affinity.remember(prefixes, server.name)
        return server

    async def _wait(self, places: Collection[str] | None, until: float) -> None:
        if self._waiting >= self._most_waiting:
            raise EngineBusy(f"no engine answers, and {self._waiting} requests wait for one already")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._some_up.wait()
                while self._info is not None and not self._up_but((), places):
                    await asyncio.sleep(_POLL_S)  # somebody is up, who is none of them
        except TimeoutError as error:
            names = ", ".join(sorted(places or self._servers))
            raise EngineBusy(f"{names}: no engine answered for {self._patience_s:g} seconds") from error
        finally:
            self._waiting -= 1
        if self._info is None:
            raise EngineBusy("the engine is shutting down")

    def _tell(self) -> None:
        if any(server.up for server in self._servers.values()):
            self._some_up.set()
        elif self._info is not None:
            self._some_up.clear()

    async def _watch(self, server: Server) -> None:
        while True:
            was_up = server.up
            try:
                await server.poll()
                if server.up and not was_up:
                    others = [each.sent for each in self._servers.values() if each.up and each is not server]
                    server.sent = max(server.sent, min(others, default=0))
                self._tell()
                await server.measure()
            except Exception as error:  # nobody else would ever look at this server again
                _log.debug("%s", server.name, exc_info=True)
                server.lost(f"it cannot be watched: {error!r:.200}")
                self._tell()
            await asyncio.sleep(_POLL_S)
