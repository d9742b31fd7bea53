"""vLLM behind the `Engine` protocol: a child that is started, watched, started again when it dies, and stopped.

What completes is the client that it is given, over HTTP. This adds a life to that: a request that has received nothing
when vLLM dies waits and is sent again, one that has ends with an `EngineError`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from dovetail.backends.remote.http import Http
from dovetail.backends.remote.suspects import Suspects
from dovetail.backends.vllm import restarts
from dovetail.backends.vllm.advice import advice, ending, nearest, unknown
from dovetail.backends.vllm.child import Child
from dovetail.backends.vllm.launching import URL, Launch, Socket, open_log
from dovetail.backends.vllm.log import Progress, failure, last, progress
from dovetail.backends.vllm.program import options
from dovetail.completion import Completion, Engine, EngineInfo, TokenBatch
from dovetail.errors import EngineBusy, EngineError, InvalidRequest, PlanError

_log = logging.getLogger(__name__)

SILENCE_S = 1800.0  # without a line of its log, or a byte fetched, until a start has failed
HUNG_S = 300.0  # without an answer to a question for its health, until one that serves is ended
_POLL_S = 0.2
_WATCH_S = 5.0
_NEWS_S = 3.0  # within which a death shows that broke a request off: by then it is not well any more
_GONE_S = 60.0  # within which one that is not well has ended; vLLM ends in order when a process of its own was killed
_CHILD = "vLLM"

#: The bytes of the weights that are here, and of all.
Fetched = Callable[[], tuple[int, int]]


class Report(Protocol):
    """Who is told how it goes: a terminal, a log."""

    def progress(self, progress: Progress, silent: float) -> None:
        """Where it is on its way, and for how many seconds it has said nothing."""

    def say(self, text: str) -> None:
        """What an operator should know: a crash, a return."""


class VLLMEngine:
    """`launch` starts it on `socket`, and `client` talks to it there. `log` is the file of its output. `fetched`, where
    weights have to be fetched first."""

    def __init__(
        self,
        launch: Launch,
        client: Engine,
        socket: Socket,
        log: Path,
        report: Report,
        *,
        fetched: Fetched | None = None,
        silence: float = SILENCE_S,
        hung: float = HUNG_S,
    ) -> None:
        self._launch = launch
        self._client = client
        self._socket = socket
        self._log = log
        self._report = report
        self._fetched = fetched
        self._silence = silence
        self._hung = hung
        self._file: BinaryIO | None = None
        self._child: Child | None = None
        self._starting: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._restarts = 0
        self._deaths = 0
        self._suspects = Suspects()
        self._alone = asyncio.Lock()
        self._booting = self._serving = False
        self._progress = Progress("starting")
        self._last_fetched = 0.0
        self.gave_up: asyncio.Future[EngineError] | None = None

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    async def start(self) -> None:
        """Start it and wait until it is healthy. Raises `EngineError` with why it is not."""
        if self._starting is not None or self._ending is not None:
            raise EngineError("the engine was started already")
        self._starting = asyncio.create_task(self._start())
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.stop)
            await asyncio.wait({self._starting})
            if self._ending is not None:
                raise EngineError("the engine was stopped while it started")
            self._starting.result()
            undo.pop_all()

    async def _start(self) -> None:
        self._file = open_log(self._log)
        self.gave_up = asyncio.get_running_loop().create_future()
        await self._boot()
        await self._client.start()
        self._keeper = asyncio.create_task(self._keep())
        self._keeper.add_done_callback(self._kept)

    async def stop(self) -> None:
        """End running sequences, the child and all it started. Whoever calls it a second time waits for the first."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        for task in (self._starting, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        try:
            await self._client.stop()
        finally:
            if self._child is not None:
                await self._child.stop()
            if self._file is not None:
                self._file.close()
            self._socket.close()

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        """Stream the continuation. Raises as the protocol says; `EngineError` also where it began and vLLM died, and
        `InvalidRequest` for a prompt that vLLM dies of.

        The client waits for a server that is gone. What an engine says that is about to go is an error like any other.
        """
        prompt = hash(completion.prompt)
        async with (
            self._alone if self._suspects.alone(prompt) else nullcontext(),
            aclosing(self._sent(completion, prompt)) as batches,
        ):
            async for batch in batches:
                yield batch

    async def _sent(self, completion: Completion, prompt: int) -> AsyncGenerator[TokenBatch]:
        while True:
            if self._suspects.convicted(prompt):
                # Not an error that clients send it again for.
                raise InvalidRequest("the engine died again and again of this prompt, so it is not sent any more")
            begun = answered = False
            batches = cast(AsyncGenerator[TokenBatch], self._client.complete(completion))
            self._suspects.enter(prompt, _CHILD)
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        begun = True
                        yield batch
                answered = True
                return
            except EngineBusy as error:
                if self.gave_up is not None and self.gave_up.done():
                    raise self.gave_up.result() from error
                raise
            except EngineError as error:
                if not await self._died():
                    raise
                # The second death in a row is perhaps the request's own doing.
                if begun or (self._suspects.alone(prompt) and not self._suspects.convicted(prompt)):
                    raise EngineError("the engine died while it answered, and is being started again") from error
            finally:
                self._suspects.leave(prompt, _CHILD, answered=answered)

    async def _died(self) -> bool:
        """Whether it has died, or does at once: its children go before it."""
        began, deaths = time.monotonic(), self._deaths
        while self._serving and self._deaths == deaths and self._ending is None:
            well = self._client.gauges().get("up", 1) > 0
            if time.monotonic() - began > (_NEWS_S if well else _GONE_S):
                break
            await asyncio.sleep(_POLL_S / 4)
        return not self._serving or self._deaths != deaths

    def gauges(self) -> dict[str, float]:
        """The client's, and how often vLLM was started again."""
        return {**self._client.gauges(), "restarts_total": self._restarts}

    async def _keep(self) -> None:
        """Start it again whenever it dies, until it dies too often."""
        crashes: list[float] = []
        why = ""
        while True:
            assert self._child is not None and self.gave_up is not None
            blamed = False
            if not why:
                hung = await self._outlive(self._child)
                blamed = self._suspects.died(_CHILD)
            self._deaths, self._serving = self._deaths + 1, False
            if blamed:  # deaths of one prompt are one: nothing is wrong with an engine that others do not kill
                crashes.pop()
            crashes.append(time.monotonic())
            why = why or hung or await self._why(self._child, await self._child.end())
            delay = restarts.delay(crashes)
            if delay is None:
                self.gave_up.set_result(_final(f"vLLM died {restarts.MOST} times, the last time: {why}"))
                await self._client.stop()  # nobody waits any longer
                return
            self._report.say(f"vLLM died. {why}. It is started again in {delay:.0f} s")
            self._restarts += 1
            began = time.monotonic() + delay
            try:
                await self._boot(delay)
            except _Dead as error:
                why = error.message
            else:
                why = ""
                self._report.say(f"vLLM is back, after {time.monotonic() - began:.0f} s")

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Whatever ends the keeper but the end itself: an engine that nobody keeps is given up."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None and self.gave_up is not None and not self.gave_up.done():
            _log.error("vLLM is watched no longer", exc_info=error)
            self.gave_up.set_result(_final(f"vLLM is watched no longer: {type(error).__name__}: {error}"))

    async def _outlive(self, child: Child) -> str:
        """Wait until it has ended; one that does not answer for too long is ended, and why is returned."""
        http = self._asking()
        answered, ending = time.monotonic(), asyncio.ensure_future(child.end())
        try:
            while not (await asyncio.wait({ending}, timeout=min(_WATCH_S, self._hung / 4)))[0]:
                if await _well(http):
                    answered = time.monotonic()
                elif time.monotonic() - answered > self._hung and not child.ended:
                    await child.stop()
                    return (
                        f"vLLM did not answer for {self._hung:.0f} s and was ended. All that it said is in {self._log}"
                    )
        finally:
            ending.cancel()
            await http.close()
        return ""

    async def _boot(self, pause: float = 0) -> None:
        """A child that is healthy, started after `pause` seconds, or none. Raises `_Dead` where it is not."""
        assert self._file is not None
        self._progress, self._booting = Progress("starting"), True
        launch, path = self._launch, self._socket.path
        # Its leash keeps the pause, so that there is one at any time to remove the socket's folder behind us.
        self._child = child = Child(launch.arguments, launch.environment, path, self._file, self._hear, pause)
        try:
            self._socket.open()
            await child.start()
        except PlanError as error:
            raise _Dead(error.message) from error
        except OSError as error:
            raise _Dead(f"vLLM cannot be started: {error.strerror or error}") from error
        http = self._asking()
        try:
            while not child.ended:
                if await _well(http):
                    self._serving = True
                    self._report.progress(Progress("ready"), 0)
                    return
                silent = time.monotonic() - max(child.last_heard, await self._fetching())
                self._report.progress(self._progress, silent)
                if silent > self._silence:
                    await child.stop()
                    raise _Dead(
                        f"vLLM said nothing for {silent:.0f} s and was ended. All that it said is in {self._log}"
                    )
                await asyncio.sleep(_POLL_S)
        finally:
            self._booting = False
            await http.close()
        raise _Dead(await self._why(child, await child.end(), doing="starting"))

    def _asking(self) -> Http:
        """To ask for its health with."""
        return Http(URL, "vLLM", None, self._silence, self._socket.path)

    async def _fetching(self) -> float:
        """When the last byte of the weights came, that was seen to come; 0 where nothing is fetched."""
        if self._fetched is None or self._progress.phase not in ("starting", "download"):
            return 0.0
        here, total = await asyncio.to_thread(self._fetched)
        if here != self._progress.done:
            self._progress, self._last_fetched = Progress("download", min(here, total), total), time.monotonic()
        return self._last_fetched

    def _hear(self, line: str) -> None:
        found = progress(line)
        if found is not None and self._booting:
            self._progress = found
            self._report.progress(found, 0)

    async def _why(self, child: Child, code: int, *, doing: str = "serving") -> str:
        """Of a child that has ended: how, its error, and what to do. Its last lines are said."""
        log = list(child.lines)
        found = failure(log)
        lines = last(log) if found is None else found.lines
        if lines:
            self._report.say("\n".join(("vLLM's last lines:", *(f"  {line}" for line in lines))))
        parts = [f"vLLM ended while {doing}, {ending(code)}"]
        if found is not None:
            parts[0] += f": {found.error.rstrip('.')}"
            for option in unknown(found.error):
                near = nearest(option, await asyncio.to_thread(options, self._launch.arguments[0]))
                parts.append(f"vLLM has no {option}{f': {near}' if near else ''}")
            what = advice(found.error, drafter=found.drafter)
            if what is not None:
                parts.append(what[0].upper() + what[1:])
        said = (part if part.endswith("?") else f"{part}." for part in parts)
        return " ".join((*said, f"All that it said is in {self._log}"))


def _final(message: str) -> EngineError:
    """Why there is no engine any more: for the operator, since it has words of vLLM's log."""
    error = EngineError(message)
    error.private = True
    return error


async def _well(http: Http) -> bool:
    try:
        return (await http.page("/health"))[0] == 200
    except EngineError:
        return False


class _Dead(EngineError):
    """A start that failed."""
