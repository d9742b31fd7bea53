"""The second thread: it fills a step's masks and prepares the next step while the model computes this one.

Torch's kernels release the interpreter, so another thread can run meanwhile. Nothing is locked: at every moment each
state belongs to one thread, and changes hands at two fences.

| state | until the batch is built | while the model computes | afterwards |
|---|---|---|---|
| weights, the rows of the caches, the `ForwardBatch` | stepping | stepping | stepping |
| constraints and mask rows of this step | stepping | second: `MaskRows.fill` | stepping |
| scheduler, tables and pools, the drafter, waiting requests | stepping | second: `Scheduler.prepare` | stepping |
| this step's requests and windows | stepping | read by both, written by none | stepping |

*First fence: the batch is built.* The model reads nothing but the batch, which holds copies: lists of tokens, positions
and rows, and for each sequence a slice or an index, which a table replaces when it grows and never changes. The step
does not write the blocks that the second thread takes, because they were free. Nobody writes the blocks that it shares,
because they were published. It gives back only blocks that it took itself.
*Second fence: the job is done.* The stepping thread waits for the job before it reads a mask, a request or a table
again, even if the model or the job failed.

The second thread guesses nothing about this step's tokens: it does the work that does not depend on them, and
`Scheduler.schedule` decides.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")
Job = Callable[[], None]

# Shorter jobs, in seconds, run in the stepping thread. With kernels as short as the job, the second thread costs a step
# 70 to 200 us, because both threads wait for the interpreter (docs/decisions/0013-steps-that-overlap.md).
_WORTH = 1e-3


def _ignore(place: str) -> None: ...


class Overlap:
    """Runs jobs in a second thread while the model computes.

    `always`: True for every job, False for none, None for jobs that are long enough to be worth it. The thread starts
    with the first job and ends with `close`, or when this object is deleted. `at` is called wherever work changes
    hands, so that a test can wait there.
    """

    def __init__(self, always: bool | None) -> None:
        self._always = always
        self._jobs: SimpleQueue[_Handover | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.at: Callable[[str], None] = _ignore
        weakref.finalize(self, self._jobs.put, None)

    def during(self, compute: Callable[[], T], must: Job, may: Job, seconds: float) -> T:
        """Run `must`, and return what `compute` returns.

        In the second thread `must` runs during `compute`, and then `may`; otherwise `must` runs first and `may` does
        not run. `seconds`: about how long both jobs take. Raises what `compute` raises, or else what a job raises.
        """
        if not (seconds > _WORTH if self._always is None else self._always):
            must()
            return compute()

        def job() -> None:
            self.at("job")
            must()
            self.at("between jobs")
            may()
            self.at("job done")

        self._start()
        self.at("batch built")
        handover = _Handover(job)
        self._jobs.put(handover)
        try:
            self.at("handed over")
            result = compute()
            self.at("computed")
        finally:
            failure = handover.wait()
        if failure is not None:
            raise failure
        self.at("joined")
        return result

    def close(self) -> None:
        """End the thread, if there is one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="dovetail-overlap", daemon=True)
            self._thread.start()


class _Handover:
    """A job for the second thread, and how it ended."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._job()
        except BaseException as error:  # the thread that waits raises it, an exit of the process included
            self._failure = error
        self._done.set()

    def wait(self) -> BaseException | None:
        """Wait for the job, and return what it raised. The job is done even if Ctrl-C interrupts the wait."""
        try:
            self._done.wait()
        except KeyboardInterrupt:  # before the job is done, or after
            self._done.wait()
            raise
        return self._failure


def _serve(jobs: SimpleQueue[_Handover | None]) -> None:
    """The thread. It refers to the queue only and keeps no job, so that its owner can be deleted."""
    with torch.inference_mode():
        while (handover := jobs.get()) is not None:
            handover.run()
            del handover
