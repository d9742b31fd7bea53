"""The second thread: a step's masks, and what the next step needs, while the model computes this one.

Torch's kernels let go of the interpreter, so another thread gets on while they run. Nothing is locked: at every moment
each state belongs to one thread, and changes hands at two fences.

| state | until the batch is built | while the model computes | afterwards |
|---|---|---|---|
| weights, the rows of the caches, the `ForwardBatch` | stepping | stepping | stepping |
| constraints and mask rows of this step | stepping | second: `MaskRows.fill` | stepping |
| scheduler, tables and pools, the drafter, waiting requests | stepping | second: `Scheduler.prepare` | stepping |
| this step's requests and windows | stepping | read by both, written by none | stepping |

*First fence: the batch is built.* It is all that the model reads, and it is copies: lists of tokens, positions and
rows, and for each sequence a slice or an index that a table replaces when it grows and never changes. A block that the
second thread takes was free, so the step does not write it; blocks that it shares were published, so nobody writes
them; blocks that it gives back it took itself.
*Second fence: the job is done.* The stepping thread waits for it before it looks at a mask, a request or a table again,
whether the model or the job failed or not.

What cannot be known before this step's tokens are is not guessed: `Scheduler.schedule` decides, and finds done what
could be done. Where the model computes on a device and its calls return early, the first fence has to be an event that
is recorded after drafting, not after the batch was copied: the drafter reads the same batch and writes the tables that
the next one is built from.
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

# Jobs of fewer seconds stay here: giving one away costs a step 70 to 200 us where kernels are as short, since both
# threads wait for the interpreter (figures in docs/decisions/0013-steps-that-overlap.md).
_WORTH = 1e-3


def _nowhere(place: str) -> None: ...


class Ahead:
    """Runs jobs while the model computes. `overlap`: True gives every job away, False none, None those that are worth
    it. The thread starts with the first job and ends with `close`, or when this object is gone.

    `at` is called at every place where work changes hands: a test waits there.
    """

    def __init__(self, overlap: bool | None) -> None:
        self._overlap = overlap
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.at: Callable[[str], None] = _nowhere
        weakref.finalize(self, self._jobs.put, None)

    def during(self, compute: Callable[[], T], must: Job, may: Job, seconds: float) -> T:
        """What `compute` returns, after `must` has run, beside it or before it; beside it, `may` runs as well.

        `seconds` is about what both take. Raises what `compute` raises, or else what a job does.
        """
        if not (seconds > _WORTH if self._overlap is None else self._overlap):
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
        self._jobs.put(job)
        try:
            self.at("handed over")
            result = compute()
            self.at("computed")
        finally:
            failure = self._wait()
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
            arguments = (self._jobs, self._ends)
            self._thread = threading.Thread(target=_serve, args=arguments, name="dovetail-ahead", daemon=True)
            self._thread.start()

    def _wait(self) -> BaseException | None:
        try:
            return self._ends.get()
        except KeyboardInterrupt:
            # Whoever goes on after this must find the job done.
            self._ends.get()
            raise


def _serve(jobs: SimpleQueue[Job | None], ends: SimpleQueue[BaseException | None]) -> None:
    """The thread. It knows the queues alone, and keeps no job: else its owner would never be gone."""
    with torch.inference_mode():
        while (job := jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # the thread that waits raises it, an exit of the process included
                ends.put(error)
            else:
                ends.put(None)
            del job
