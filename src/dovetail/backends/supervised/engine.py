"""An engine as a child process: starts it, watches it, restarts it when it dies, and stops it.

Completions go over HTTP, through a `RemoteEngine` with one server. A request that has received nothing when it dies
waits for the restart and is sent again, once; a request that has begun ends with an `EngineError`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import BinaryIO, Protocol

from dovetail.backends.remote import RemoteEngine, Server
from dovetail.backends.remote.errors import NoServer
from dovetail.backends.remote.http import Http
from dovetail.backends.supervised.child import Child
from dovetail.backends.supervised.log_file import open_log
from dovetail.backends.supervised.program import Launch, Progress, ending
from dovetail.backends.supervised.socket import Socket
from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch
from dovetail.errors import EngineBusy, EngineError, EngineTimeout, EngineUnavailable, PlanError

_log = logging.getLogger(__name__)

#: Seconds that a request waits for the engine to come back; a large model loads for minutes.
PATIENCE_S = 900.0
#: Seconds without a line of the log or a downloaded byte after which a start has failed.
SILENCE_S = 1800.0
#: Seconds without an answer of /health after which a serving engine is killed.
HUNG_S = 300.0
#: The fifth crash within half an hour is the last. A large model may load for ten minutes before it crashes again.
CRASH_WINDOW_S = 1800.0
MOST_CRASHES = 5
FIRST_DELAY_S = 1.0
_POLL_S = 0.2
_WATCH_S = 5.0
#: Seconds after a broken request within which a dead engine core shows in /health.
_NEWS_S = 3.0
#: Seconds within which an unhealthy engine exits; vLLM shuts down in order when one of its processes was killed.
_EXIT_S = 60.0

#: Returns how many bytes of the weights are downloaded, and how many there are.
Downloaded = Callable[[], tuple[int, int]]


class Report(Protocol):
    """Shows an operator what the engine does, on a terminal or in a log."""

    def progress(self, progress: Progress, silent: float) -> None:
        """How far the start is, and for how many seconds the engine has written nothing."""

    def say(self, text: str) -> None:
        """A crash, a restart, or anything else that the operator should know."""


class SupervisedEngine:
    """Runs `launch`, which listens on `socket`, and completes through `server`, the client of that socket.

    `log`: the file for its output. `downloaded`: given if it has to download the weights.
    `patience_s`, `silence_s`, `hung_s`: see `PATIENCE_S`, `SILENCE_S` and `HUNG_S`. `joined`: called after a restart,
    see `RemoteEngine`.
    """

    def __init__(
        self,
        launch: Launch,
        server: Server,
        socket: Socket,
        log: Path,
        report: Report,
        *,
        downloaded: Downloaded | None = None,
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
        hung_s: float = HUNG_S,
        joined: Callable[[Server], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self._launch, self._program = launch, launch.program
        self._client = RemoteEngine([server], patience_s=patience_s, survived=self._survived, joined=joined)
        self._socket = socket
        self._log = log
        self._report = report
        self._downloaded = downloaded
        self._silence_s = silence_s
        self._hung_s = hung_s
        self._file: BinaryIO | None = None
        self._child: Child | None = None
        self._starting: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._restarts = 0
        self._deaths = 0
        self._booting = self._serving = False
        self._progress = Progress("starting")
        self._last_download = 0.0
        #: Resolves when the engine is given up, with the error to show the operator. None before `start`.
        self.gave_up: asyncio.Future[EngineError] | None = None

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    async def start(self) -> None:
        """Start it and wait until it is healthy. Raises `EngineError`, with the reason, if it does not become so."""
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
        self._keeper.add_done_callback(self._keeper_ended)

    async def stop(self) -> None:
        """End running completions, the child and all of its processes. A second call waits for the first."""
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

    async def complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the continuation. Raises as the `Engine` protocol says, and as `RemoteEngine.complete`."""
        deaths = self._deaths
        try:
            async with aclosing(self._client.complete(completion)) as batches:
                async for batch in batches:
                    yield batch
        except (EngineBusy, NoServer) as error:
            if self.gave_up is not None and self.gave_up.done():
                raise self.gave_up.result() from error
            raise
        except EngineTimeout:
            raise
        except EngineError as error:
            if self._serving and self._deaths == deaths:
                raise
            raise EngineUnavailable("the engine died while it answered, and is being started again") from error

    async def _survived(self, server: Server) -> bool:
        """Whether it still lives after a request failed. vLLM's engine core may die before the child exits."""
        began, deaths = time.monotonic(), self._deaths
        while self._serving and self._deaths == deaths and self._ending is None:
            if time.monotonic() - began > (_NEWS_S if await server.healthy() else _EXIT_S):
                break
            await asyncio.sleep(_POLL_S / 4)
        return self._serving and self._deaths == deaths

    def gauges(self) -> list[MetricSample]:
        """The client's counters, and `restarts_total`."""
        return [*self._client.gauges(), MetricSample("restarts_total", {}, self._restarts)]

    async def _keep(self) -> None:
        """Restart the program whenever it dies, until it dies too often."""
        crashes: list[float] = []
        failed_start = ""
        while True:
            assert self._child is not None and self.gave_up is not None
            why = failed_start or await self._outlive(self._child)
            self._deaths, self._serving = self._deaths + 1, False
            why = why or await self._explain(self._child, await self._child.end())
            crashes.append(time.monotonic())
            delay = restart_delay(crashes)
            if delay is None:
                self.gave_up.set_result(
                    _private(f"{self._program.name} died {MOST_CRASHES} times, the last time: {why}")
                )
                await self._client.stop()  # ends the requests that wait for a restart
                return
            self._report.say(f"{self._program.name} died. {why}. It is started again in {delay:.0f} s")
            self._restarts += 1
            began = time.monotonic() + delay
            try:
                await self._boot(delay)
            except _StartFailed as error:
                failed_start = error.message
            else:
                failed_start = ""
                self._report.say(f"{self._program.name} is back, after {time.monotonic() - began:.0f} s")

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """Give the engine up if the keeper failed: nothing would restart it any more."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None and self.gave_up is not None and not self.gave_up.done():
            _log.error("%s is watched no longer", self._program.name, exc_info=error)
            self.gave_up.set_result(
                _private(f"{self._program.name} is watched no longer: {type(error).__name__}: {error}")
            )

    async def _outlive(self, child: Child) -> str:
        """Wait until the child has exited. A child that hangs is killed, and the reason is returned."""
        http = self._health_client()
        answered, exited = time.monotonic(), asyncio.ensure_future(child.end())
        try:
            while not (await asyncio.wait({exited}, timeout=min(_WATCH_S, self._hung_s / 4)))[0]:
                if await http.healthy():
                    answered = time.monotonic()
                elif time.monotonic() - answered > self._hung_s and not child.ended:
                    await child.stop()
                    silent = f"did not answer for {self._hung_s:.0f} s and was ended"
                    return f"{self._program.name} {silent}. Its whole log is {self._log}"
        finally:
            exited.cancel()
            await http.close()
        return ""

    async def _boot(self, pause: float = 0) -> None:
        """Start a child after `pause` seconds and wait until it is healthy. Raises `_StartFailed`."""
        assert self._file is not None
        self._progress, self._booting = Progress("starting"), True
        launch, path = self._launch, self._socket.path
        # The supervisor process keeps the pause, so that one exists at any time to remove the socket's folder.
        self._child = child = Child(launch.arguments, launch.environment, path, self._file, self._hear, pause)
        try:
            self._socket.open()
            await child.start()
        except PlanError as error:
            raise _StartFailed(error.message) from error
        except OSError as error:
            raise _StartFailed(f"{self._program.name} cannot be started: {error.strerror or error}") from error
        http = self._health_client()
        try:
            while not child.ended:
                if await http.healthy():
                    self._serving = True
                    self._report.progress(Progress("ready"), 0)
                    return
                silent = time.monotonic() - max(child.last_output, await self._last_downloaded())
                self._report.progress(self._progress, silent)
                if silent > self._silence_s:
                    await child.stop()
                    nothing = f"wrote nothing for {silent:.0f} s and was ended"
                    raise _StartFailed(f"{self._program.name} {nothing}. Its whole log is {self._log}")
                await asyncio.sleep(_POLL_S)
        finally:
            self._booting = False
            await http.close()
        raise _StartFailed(await self._explain(child, await child.end(), doing="starting"))

    def _health_client(self) -> Http:
        return Http(self._program.url, self._program.name, None, self._silence_s, self._socket.path)

    async def _last_downloaded(self) -> float:
        """When the downloaded part last grew; 0 if nothing is downloaded."""
        if self._downloaded is None or self._progress.phase not in ("starting", "download"):
            return 0.0
        done, total = await asyncio.to_thread(self._downloaded)
        if done != self._progress.done:
            self._progress, self._last_download = Progress("download", min(done, total), total), time.monotonic()
        return self._last_download

    def _hear(self, line: str) -> None:
        step = self._program.progress(line)
        if step is not None and self._booting:
            self._progress = step
            self._report.progress(step, 0)

    async def _explain(self, child: Child, code: int, *, doing: str = "serving") -> str:
        """Why a child exited: its exit code, its error, and what to do. Also reports its last lines."""
        log = list(child.lines)
        diagnosis = self._program.failure(log)
        lines = self._program.last(log) if diagnosis is None else diagnosis.lines
        if lines:
            self._report.say("\n".join((f"{self._program.name}'s last lines:", *(f"  {line}" for line in lines))))
        sentences = [f"{self._program.name} ended while {doing}, {ending(code)}"]
        if diagnosis is not None:
            sentences[0] += f": {diagnosis.error.rstrip('.')}"
            sentences += await asyncio.to_thread(self._program.advice, diagnosis)
        ended = (sentence if sentence.endswith("?") else f"{sentence}." for sentence in sentences)
        return " ".join((*ended, f"Its whole log is {self._log}"))


def _private(message: str) -> EngineError:
    """An error for the operator only, because its message quotes the engine's log."""
    error = EngineError(message)
    error.private = True
    return error


class _StartFailed(EngineError):
    """The engine did not become healthy."""


def restart_delay(crashes: Sequence[float]) -> float | None:
    """Seconds until the next start after `crashes`, of which the last is now; None to give up.

    The delay doubles with each crash in the window: an engine that crashes once a day waits `FIRST_DELAY_S` each time.
    """
    recent = sum(1 for crash in crashes if crash > crashes[-1] - CRASH_WINDOW_S)
    return None if recent >= MOST_CRASHES else FIRST_DELAY_S * 2.0 ** (recent - 1)
