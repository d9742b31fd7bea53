"""Several servers behind HTTP as one engine: which are there, which gets a request, and what if one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Literal

from dovetail.backends.remote import routing
from dovetail.backends.remote.crash_suspects import CrashSuspects
from dovetail.backends.remote.errors import NoServer, ServerLost
from dovetail.backends.remote.members import Members
from dovetail.backends.remote.server import Server
from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch
from dovetail.errors import EngineBusy, EngineError, EngineTimeout, EngineUnavailable
from dovetail.grammar.grammar import Writer

_log = logging.getLogger(__name__)

#: Seconds between two looks at a server's health, and at which servers there are.
POLL_S = 1.0
FOLLOW_S = 2.0
#: Seconds that a request waits for a server to come back.
PATIENCE_S = 60.0
_MOST_SENDS = 2


class RemoteEngine:
    """An engine that completes on `servers` and on those that `members` finds. All hold the same model.

    A server that `members` does not find any more gets no new requests, and is closed when it has answered those that
    it has. `stop` closes all servers.

    A request whose server is lost before the first token came is sent again, once: to another server, or, if none is
    up, to the first that comes back within `patience_s` seconds. At most `most_waiting` requests wait like this. If the
    second server is lost too, the request fails. `CrashSuspects` bounds how many servers one prompt can take down.

    `survived` tells whether a server that failed to answer a request still lives; by default its /health tells.
    `joined` is called, beside requests, with each server that comes up after the start: late, or again.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        members: Members | None = None,
        patience_s: float = PATIENCE_S,
        most_waiting: int = 256,
        survived: Callable[[Server], Awaitable[bool]] = Server.healthy,
        joined: Callable[[Server], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self._servers = {server.name: server for server in servers}
        if not (servers or members) or len(self._servers) < len(servers):
            raise EngineError("engine must name at least one server, and each server once")
        self._fixed = frozenset(self._servers)
        self._members = members
        self._unfound = ""  # why nobody knew which servers there are, when that was asked last
        self._patience_s, self._most_waiting = patience_s, most_waiting
        self._survived = survived
        self._joined = joined
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._suspects = CrashSuspects()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._info: EngineInfo | None = None
        self._some_up = asyncio.Event()
        self._waiting = self._resent = 0

    @property
    def servers(self) -> list[Server]:
        """The servers that are up."""
        return self._up_but(())

    @property
    def info(self) -> EngineInfo:
        """The limits that every server which was up at the start can keep."""
        if self._info is None:
            raise EngineError("the engine is not running: start() comes first, and nothing after stop()")
        return self._info

    async def start(self) -> None:
        """Connect to the servers. If at least one is up, the others join when they answer. Raises `EngineError`.

        If this fails or is cancelled, the servers are closed.
        """
        if self._info is not None:
            raise EngineError("the engine was started already")
        if self._members is not None:
            found = map(self._members.server, await self._members.find())
            self._servers |= {server.name: server for server in found if server.name not in self._servers}
        servers = list(self._servers.values())
        if not servers:
            raise EngineError("what engine names finds no engine now")
        async with AsyncExitStack() as undo:
            for server in servers:
                undo.push_async_callback(server.close)
            infos = await self._open(servers)
            undo.pop_all()
        self._info = EngineInfo(
            min(info.context for info in infos),
            infos[0].vocab_size,
            infos[0].eos_ids,
            max(info.draft_tokens for info in infos),
            _enforced(infos),
            all(info.prompt_logprobs for info in infos),
            all(info.bounds_reasoning for info in infos),
            salts_cache=all(info.salts_cache for info in infos),
            pictures=all(info.pictures for info in infos),
            priorities=all(info.priorities for info in infos),
            adapters=all(info.adapters for info in infos),
        )
        self._some_up.set()
        for server in servers:
            self._begin_watch(server, self._info.context)
        if self._members is not None:
            self._following = asyncio.create_task(self._follow(self._members))

    async def _open(self, servers: Sequence[Server]) -> list[EngineInfo]:
        """The limits of the servers that are up. Raises `EngineError` if none is up, or if one must not be used."""
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
        tasks = [*self._watches.values(), *self._joining.values(), *filter(None, [self._following])]
        self._watches, self._joining, self._following = {}, {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the continuation. Raises `ContextExceeded`, `InvalidRequest`, `EngineBusy` or `EngineError`:
        `EngineUnavailable` if no server is up or the servers are lost, `EngineTimeout` if one is silent for too long.

        `EngineBusy` and `EngineError` are private: their messages contain addresses and the servers' own words.
        """
        try:
            async with aclosing(self._complete(completion)) as batches:
                async for batch in batches:
                    yield batch
        except (EngineBusy, EngineError) as error:
            error.private = True
            raise

    async def _complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        _ = self.info
        key = routing.key_of(completion)
        tried: set[str] = set()  # servers that were full or lost
        busy: list[EngineBusy] = []
        losses = sends = 0
        deadline = self._patience()
        while True:
            server = await self._server(key, tried, deadline)
            begun = False
            try:
                async with aclosing(self._from(server, completion)) as batches:
                    async for batch in batches:
                        begun = True
                        yield batch
                return
            except EngineBusy as error:
                tried.add(server.name)
                busy.append(error)
                # A request that waited long in one server's queue is not put at the end of another's.
                if begun or not self._up_but(tried) or _now() > deadline:
                    _agree(busy)
                    raise
            except ServerLost as error:
                if self._info is None:
                    raise EngineBusy("the engine is shutting down") from error
                tried.add(server.name)
                losses, sends = losses + 1, sends + error.sent
                if losses == 1:
                    deadline = self._patience()  # the request may have waited long in the lost server's queue
                if begun:
                    raise EngineUnavailable(f"{error.message}, after the answer had begun") from error
                if sends == _MOST_SENDS:
                    raise EngineUnavailable(
                        f"{error.message}; the request was sent {sends} times without an answer"
                    ) from error
                if _now() > deadline:
                    raise
                self._resent += 1
                _log.warning("%s; the request is sent again", error.message)

    async def _from(self, server: Server, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the answer of `server`. Any error of a server that did not survive it becomes a `ServerLost`."""
        prompt, life, answered = hash(completion.seen), server.life, False
        self._suspects.check(prompt, _now())
        self._suspects.begin(prompt, life)
        try:
            async with aclosing(server.complete(completion)) as batches:
                async for batch in batches:
                    yield batch
            answered = True
        except EngineTimeout:
            raise  # its client has waited long enough, and the watch finds out whether the server lives
        except EngineError as error:
            sent = not isinstance(error, ServerLost) or error.sent
            # A connection may break, or an answer fail, on a server that lives.
            if sent and await self._survived(server):
                raise
            if sent:
                self._suspects.died(life, _now())
            server.lost()
            self._signal()
            raise ServerLost(error.message, sent=sent) from error
        finally:
            self._suspects.end(prompt, life, answered=answered)

    def gauges(self) -> list[MetricSample]:
        """The servers' counters, under the names that the embedded engine uses.

        With several servers each counter has a label `server`. `up`: whether a server is up. `resent_total`: requests
        sent again. `waiting_for_server`: requests that wait for a server to come back.
        """
        servers = self._servers.values()
        samples = [
            MetricSample("up", {}, any(server.up for server in servers)),
            MetricSample("resent_total", {}, self._resent),
            MetricSample("waiting_for_server", {}, self._waiting),
        ]
        for server in servers:
            if len(servers) == 1 and self._members is None:
                samples += server.gauges()
                continue
            named = {"server": server.name}
            samples.append(MetricSample("server_up", named, server.up))
            samples += (sample._replace(labels={**sample.labels, **named}) for sample in server.gauges())
        return samples

    def _patience(self) -> float:
        """The time until which a request waits for a server."""
        return _now() + self._patience_s

    def _up_but(self, tried: Collection[str]) -> list[Server]:
        return [
            server for name, server in self._servers.items() if server.up and not server.leaving and name not in tried
        ]

    async def _server(self, key: bytes, tried: set[str], deadline: float) -> Server:
        """The server for a request. If all are `tried` or down, waits for one, and tries all again.

        Raises `NoServer`.
        """
        while not (up := self._up_but(tried)):
            self._signal()
            await self._wait(deadline)
            tried.clear()
        loads = {server.name: server.load for server in up}
        return self._servers[routing.choose(loads, routing.order(key, loads))]

    async def _wait(self, deadline: float) -> None:
        """Wait for a server to be up. Raises `NoServer`, and `EngineBusy` when the engine stops."""
        if self._waiting >= self._most_waiting:
            raise NoServer(f"no engine answers, and {self._waiting} requests wait for one already")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._some_up.wait()
        except TimeoutError as error:
            names = ", ".join(sorted(self._servers))
            raise NoServer(f"{names}: no engine answered for {self._patience_s:g} seconds") from error
        finally:
            self._waiting -= 1
        if self._info is None:
            raise EngineBusy("the engine is shutting down")

    def _signal(self) -> None:
        """Let waiting requests go on if a server is up."""
        if self._up_but(()):
            self._some_up.set()
        elif self._info is not None:
            self._some_up.clear()

    def _greet(self, server: Server) -> None:
        """Call `joined` for a server that came up, unless it still runs from the last time."""
        running = self._joining.get(server.name)
        if self._joined is not None and (running is None or running.done()):
            self._joining[server.name] = asyncio.create_task(self._joined(server))

    def _begin_watch(self, server: Server, context: int) -> None:
        server.least_context = context
        self._watches[server.name] = asyncio.create_task(self._watch(server))

    async def _follow(self, members: Members) -> None:
        """Keep to the servers that there are. While nobody knows, those that were there stay."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                self._keep_to(members, await members.find())
                self._unfound = ""
            except Exception as error:  # nothing else would ever look again
                if self._unfound != (why := f"{error!r:.300}"):
                    _log.warning("which engines there are is not known, so the last ones stay: %s", why)
                    self._unfound = why

    def _keep_to(self, members: Members, urls: Collection[str]) -> None:
        found = {server.name: server for server in map(members.server, urls)}
        for name, server in self._servers.items():
            leaving = name not in found and name not in self._fixed
            if leaving != server.leaving:
                _log.info("%s %s", name, "leaves" if leaving else "is there again")
            server.leaving = leaving
        for name in found.keys() - self._servers.keys():
            _log.info("%s is new", name)
            self._servers[name] = found[name]
            found[name].connect()
            self._begin_watch(found[name], self.info.context)

    async def _watch(self, server: Server) -> None:
        while not (server.leaving and not server.running):
            life = server.life
            try:
                await server.poll()
                if server.up and server.life != life:
                    self._greet(server)
                self._signal()
                await server.measure()
            except Exception as error:  # nothing else would ever look at this server again
                _log.debug("%s", server.name, exc_info=True)
                server.lost(f"it cannot be watched: {error!r:.200}")
                self._signal()
            await asyncio.sleep(POLL_S)
        del self._servers[server.name], self._watches[server.name]
        _log.info("%s has left", server.name)
        await server.close()


def _agree(busy: Sequence[EngineBusy]) -> None:
    """Give the last error of servers that are all busy what is true of all of them.

    The status is 429 if each server answered with 429. The wait is the shortest one, if each server named one.
    """
    error = busy[-1]
    waits = [each.retry_after for each in busy if each.retry_after is not None]
    error.status = 429 if all(each.status == 429 for each in busy) else 503
    error.retry_after = min(waits) if len(waits) == len(busy) else None


def _now() -> float:
    return asyncio.get_running_loop().time()


_NOTATIONS: tuple[Writer, ...] = ("gbnf", "structural_tag", "lark")


def _enforced(infos: Sequence[EngineInfo]) -> Writer | Literal["nothing"]:
    """The notation of servers that enforce a grammar, as long as one of them does; of several, the one that says
    least."""
    notations = {info.enforces for info in infos}
    return next((each for each in _NOTATIONS if each in notations), "nothing")
