"""The embedded engine behind the `Engine` protocol: the core runs in a worker thread, and callers use asyncio.

Only the worker touches the core. Callers send commands through a thread-safe queue, and all outcomes of a step go back
to the event loop in one call. Constraints are called in the worker thread, or in the core's second thread while the
worker waits for it.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.engine.parallel.group import RankLost
from dovetail.engine.settings import EngineSettings
from dovetail.errors import DovetailError, EngineBusy, EngineError, guarded
from dovetail.tokens import tokenizer

_log = logging.getLogger(__name__)

Outcome = TokenBatch | DovetailError

#: What may wait for one reader, in tokens and log probabilities: 1 to 3 MB.
_MAX_UNREAD = 32_768


@dataclass(frozen=True, slots=True)
class _Add:
    request_id: str
    completion: Completion


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class _Stream:
    """What one caller has not taken yet, and the error that follows. Used on the event loop only."""

    def __init__(self) -> None:
        self._batches: collections.deque[TokenBatch] = collections.deque()
        self._unread = 0
        self._error: DovetailError | None = None
        self._more = asyncio.Event()

    def put(self, batch: TokenBatch) -> bool:
        """Add `batch`. False, and an error, if too much is unread."""
        if self._unread > _MAX_UNREAD:
            self.end(EngineBusy("the answer was not read as fast as it was generated"))
            return False
        self._batches.append(batch)
        self._unread += _size(batch)
        self._more.set()
        return True

    def end(self, error: DovetailError) -> None:
        """Raise `error` after the batches. The first error counts."""
        self._error = self._error or error
        self._more.set()

    async def next(self) -> TokenBatch:
        """The next batch, as soon as there is one."""
        while not self._batches:
            if self._error is not None:
                raise self._error
            self._more.clear()
            await self._more.wait()
        batch = self._batches.popleft()
        self._unread -= _size(batch)
        return batch


def _size(batch: TokenBatch) -> int:
    return len(batch.ids) + sum(1 + len(each.top) for each in batch.logprobs)


class EmbeddedEngine:
    """The embedded engine. `target`, `drafter` and `progress` are as for `load_models`.

    `tokenizer_path`: the folder of a tokenizer that replaces the target's. `progress` is called in the worker thread.
    """

    def __init__(
        self,
        target: Path,
        drafter: Path | str | None,
        settings: EngineSettings,
        *,
        tokenizer_path: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._target = target
        self._tokenizer_path = tokenizer_path or target
        self._drafter = drafter
        self._settings = settings
        self._progress = progress
        self._core: LLMCore | None = None
        self._worker: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: queue.SimpleQueue[_Add | _Cancel | _Stop] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count()
        # Why the engine has ended by itself.
        self._lost: RankLost | None = None

    @property
    def info(self) -> EngineInfo:
        return self._started().info

    async def start(self) -> None:
        """Load the model. Raises `CheckpointError` or `EngineError`."""
        if self._worker is not None and self._worker.is_alive():
            raise EngineError("the engine was started already")
        self._lost = None
        self._loop = asyncio.get_running_loop()
        # The old queue may hold the `_Stop` of a start that failed.
        self._commands = queue.SimpleQueue()
        loaded: asyncio.Future[LLMCore] = self._loop.create_future()
        self._worker = threading.Thread(target=self._work, args=(loaded,), name="dovetail-engine", daemon=True)
        self._worker.start()
        self._core = await loaded

    async def stop(self) -> None:
        """End running sequences and free everything."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._commands.put(_Stop())
            await asyncio.to_thread(worker.join)
        self._ended()

    def _ended(self, lost: RankLost | None = None) -> None:
        """Nothing runs any more: as it was asked for, or since a rank is `lost`."""
        self._core = None
        self._lost = self._lost or lost
        for stream in self._streams.values():
            stream.end(lost or EngineBusy("the engine is shutting down"))

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        """Stream the continuation.

        Raises `ContextExceeded`, `InvalidRequest`, `EngineBusy` or `EngineError`; `EngineBusy` also if the caller takes
        batches so slowly that they pile up.
        """
        self._started()
        # A number makes the id unique, because two clients may send the same one.
        request_id = f"{next(self._numbers)}-{completion.request_id}"
        stream = _Stream()
        self._streams[request_id] = stream
        self._commands.put(_Add(request_id, completion))
        try:
            while True:
                outcome = await stream.next()
                yield outcome
                if outcome.finish is not None:
                    return
        finally:
            del self._streams[request_id]
            self._commands.put(_Cancel(request_id))

    def gauges(self) -> list[MetricSample]:
        """The core's counters; none before `start`. "up" is 0 after a rank was lost, so that health checks fail."""
        if self._lost is not None:
            return [MetricSample("up", {}, 0)]
        return [] if self._core is None else self._core.gauges()

    def _started(self) -> LLMCore:
        if self._lost is not None:
            raise self._lost
        if self._core is None:
            raise EngineError("the engine is not running: start() comes first, and nothing after stop()")
        return self._core

    def _work(self, loaded: asyncio.Future[LLMCore]) -> None:
        """The worker thread: load the core, then take commands and run steps until `_Stop`."""
        core = self._load(loaded)
        if core is None:
            return
        try:
            self._serve(core)
        except RankLost as error:
            self._call(self._ended, error)
        finally:
            core.close()
            self._call(self._ended)

    def _serve(self, core: LLMCore) -> None:
        while True:
            while not (core.live and self._commands.empty()):
                command = self._commands.get()
                if isinstance(command, _Stop):
                    return
                if isinstance(command, _Cancel):
                    core.cancel(command.request_id)
                else:
                    self._add(core, command)
            self._send(self._step(core))

    def _load(self, loaded: asyncio.Future[LLMCore]) -> LLMCore | None:
        try:
            core = guarded(self._load_core)
        except DovetailError as error:
            self._call(_fail, loaded, error)
            return None
        except Exception as error:  # no memory, a disk that fails: the operator waits in start()
            self._call(_fail, loaded, EngineError(f"{self._target} could not be loaded: {error!r}"))
            return None
        self._call(_resolve, loaded, core)
        return core

    def _load_core(self) -> LLMCore:
        vocabulary = tokenizer(self._tokenizer_path)
        return LLMCore.load(self._target, self._drafter, vocabulary, self._settings, self._progress)

    def _add(self, core: LLMCore, command: _Add) -> None:
        try:
            guarded(core.add, command.request_id, command.completion)
        except DovetailError as error:
            self._send([(command.request_id, error)])
        except Exception as error:  # one request must not end the worker
            _log.exception("a request could not be added")
            self._send([(command.request_id, EngineError(f"the request could not be added: {error}"))])

    def _step(self, core: LLMCore) -> list[tuple[str, Outcome]]:
        """The outcomes of a step. Raises `RankLost`, after which no step can run."""
        try:
            return list(guarded(core.step))
        except RankLost:
            raise
        except Exception as error:
            # The request at fault is not known, so every running sequence ends; waiting requests get their turn.
            _log.exception("an engine step failed")
            failed = core.cancel_running()
            return [(request_id, EngineError(f"an engine step failed: {error}")) for request_id in failed]

    def _send(self, outcomes: list[tuple[str, Outcome]]) -> None:
        self._call(self._deliver, outcomes)

    def _deliver(self, outcomes: list[tuple[str, Outcome]]) -> None:
        for request_id, outcome in outcomes:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            if isinstance(outcome, DovetailError):
                stream.end(outcome)
            elif not stream.put(outcome):
                self._commands.put(_Cancel(request_id))

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Run `function` on the event loop. If the loop is closed, no caller is left, and the worker ends."""
        if self._loop is None or self._loop.is_closed():
            self._commands.put(_Stop())
            return
        self._loop.call_soon_threadsafe(function, *args)


def _resolve(loaded: asyncio.Future[LLMCore], core: LLMCore) -> None:
    if not loaded.done():
        loaded.set_result(core)


def _fail(loaded: asyncio.Future[LLMCore], error: DovetailError) -> None:
    if not loaded.done():
        loaded.set_exception(error)
