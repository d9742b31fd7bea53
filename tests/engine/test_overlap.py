"""Steps that overlap: with any delay at any place, the tokens are those of steps in sequence."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.models.base import ForwardBatch
from dovetail.engine.overlap import Overlap
from tests.engine.checkpoints import load_core, run
from tests.engine.constraints import Automaton
from tests.engine.schedules import Checkpoints, schedule
from tests.examples import examples

GREEDY = Sampling(temperature=0)


def second() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dovetail-overlap"]


def core(tiny: Checkpoints, overlap: bool | None = True, **options: Any) -> LLMCore:
    options = {"draft_tokens": 3} | options
    return load_core(tiny.targets["heads"], tiny.drafters["eagle3"], async_scheduling=overlap, **options)


class Delays:
    """Lets either thread sleep now and then: at every hand-over, between layers, in tables, in masks."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # Some schedules are disturbed everywhere, others have one thread far behind the other.
        self._often = {name: self._random.choice((0.0, 0.02, 0.2)) for name in ("stepping", "second")}
        self._longest = self._random.choice((0.0, 2e-4, 2e-3))

    def __call__(self, place: str = "") -> None:
        name = "second" if threading.current_thread().name == "dovetail-overlap" else "stepping"
        if self._random.random() < self._often[name]:
            time.sleep(self._random.random() * self._longest)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*arguments: Any, **keywords: Any) -> Any:
            self()
            result = function(*arguments, **keywords)
            self()
            return result

        return delayed

    def disturb(self, core: LLMCore) -> None:
        core.overlap.at = self
        model: Any = core.models.target
        model._layers = [
            (norm, Slow(attention, self), post, Slow(mlp, self)) for norm, attention, post, mlp in model._layers
        ]
        for part, names in (
            (core.scheduler.tables, ("begin", "reserve", "find_cached")),
            (core.loop.masks, ("enter", "_fill")),
        ):
            for name in names:
                setattr(part, name, self.around(getattr(part, name)))


class Slow:
    """A part of a layer."""

    def __init__(self, part: Any, delays: Delays) -> None:
        self._part = part
        self._delays = delays

    def add(self, *arguments: Any) -> Any:
        self._delays()
        return self._part.add(*arguments)


# 100 with the profile `proof`, 5,000 with `fuzz`.
@pytest.mark.slow
@examples(20, fuzz=5_000)
@given(seed=st.integers(0, 2**64))
def test_delays_change_nothing(tiny: Checkpoints, seed: int) -> None:
    schedule(tiny, seed, True, Delays(seed).disturb)


def test_the_schedules_cover_all_cases(tiny: Checkpoints) -> None:
    """While the model computes, the second thread fills masks, lets the next in line in, and tables grow."""
    engine = core(tiny, max_batch=4, max_batched_tokens=16)
    scheduler, seen, free = engine.scheduler, set[str](), 0

    def at(place: str) -> None:
        nonlocal free
        if place in ("job", "between jobs", "job done"):
            assert threading.current_thread() in second()
        if place == "between jobs":
            seen.update("masks" for entry in engine.loop.masks._entries if entry.rows > 1)
            free = scheduler.tables.pool.free
        if place == "job done":
            seen.add("admitted" if scheduler.ready else "grown" if scheduler.tables.pool.free < free else "nothing")

    engine.overlap.at = at
    for i in range(2):
        engine.add(f"a{i}", Completion((2, 3 + i), 60, sampling=Sampling(seed=i), constraint=Automaton.sample(i)))
    for i in range(2):
        engine.add(f"b{i}", Completion((9 + i, 8) * 12, 20, sampling=GREEDY))
    while engine.live:
        engine.step()
    assert seen == {"masks", "admitted", "grown", "nothing"}


def test_a_step_that_fails_ends_nobody_who_was_to_begin(tiny: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those admitted while it ran go on, and say what they say alone."""
    late = Completion((7, 8, 9), 20, sampling=GREEDY)
    truth = run(core(tiny, False), {"late": late})["late"]
    engine = core(tiny, max_batched_tokens=16)
    engine.add("long", Completion((2, 3) * 22, 20, sampling=GREEDY))
    engine.add("late", late)
    engine.step()
    assert engine.scheduler.waiting
    forward = engine.models.target.forward

    def broken(batch: ForwardBatch) -> Any:
        forward(batch)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(engine.models.target, "forward", broken)
        with pytest.raises(MemoryError):
            engine.step()
    assert [request.id for request in engine.scheduler.ready] == ["late"]
    engine.check_integrity()
    assert engine.cancel_running() == ["long"] and engine.live
    ids: list[int] = []
    while engine.live:
        ids += [token for _, outcome in engine.step() for token in outcome.ids]  # type: ignore[union-attr]
    assert ids == truth


@pytest.mark.parametrize("times", [1, 2])
def test_a_preparation_that_fails(
    tiny: Checkpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    """Nobody notices; what fails again in its own place fails as in sequence."""
    wanted = {"long": Completion((2, 3) * 14, 20, sampling=GREEDY), "late": Completion((7, 8), 20, sampling=GREEDY)}
    truth = run(core(tiny, False), wanted)
    engine = core(tiny, max_batched_tokens=16)
    begin, failures = engine.scheduler.tables.begin, list[str]()

    def broken(owner: str, *prompt: Any) -> int:
        found = begin(owner, *prompt)
        if owner == "late" and len(failures) < times:
            failures.append(threading.current_thread().name)
            raise MemoryError
        return found

    monkeypatch.setattr(engine.scheduler.tables, "begin", broken)
    if times == 1:
        assert run(engine, wanted) == truth
    else:
        with pytest.raises(MemoryError):
            run(engine, wanted)
        engine.check_integrity()
        assert engine.cancel_running() == ["long"]
        while engine.live:
            engine.step()
    assert failures[0] == "dovetail-overlap" and "could not be prepared" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_the_second_thread_is_raised_by_the_step(tiny: Checkpoints, error: type[BaseException]) -> None:
    class Exiting(Automaton):
        def fill(self, row: memoryview) -> None:
            assert threading.current_thread() in second()
            raise error

    engine = core(tiny)
    engine.add("a", Completion((2, 3), 9, sampling=Sampling(seed=1), constraint=Exiting([{5: 0}])))
    with pytest.raises(error):
        engine.step()
    assert engine.cancel_running() == ["a"]
    engine.add("b", Completion((2, 3), 9, sampling=GREEDY))
    while engine.live:
        engine.step()


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_waits_for_the_job(late: bool) -> None:
    """Whoever goes on after Ctrl-C finds it done. `late`: the waiting thread learns of Ctrl-C when the job is done."""
    ahead = Overlap(True)
    computed, done = threading.Event(), list[bool]()

    def job() -> None:
        computed.wait()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        done.append(True)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in background
    ahead.during(lambda: None, lambda: None, lambda: None, 0.0)  # starts the second thread, which takes every signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT] if late else [])
    try:
        with pytest.raises(KeyboardInterrupt):
            ahead.during(computed.set, job, lambda: None, 0.0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    assert done
    assert ahead.during(lambda: 5, lambda: None, lambda: None, 0.0) == 5
    ahead.close()


def test_both_fail() -> None:
    """What the model raises comes first: the job's own failure is met again, or was an exit."""
    ahead = Overlap(True)

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(ValueError):
        ahead.during(lambda: fail(ValueError()), lambda: fail(KeyError()), lambda: None, 0.0)
    with pytest.raises(KeyError):
        ahead.during(lambda: None, lambda: fail(KeyError()), lambda: None, 0.0)
    ahead.close()


def test_the_thread_ends_with_its_core(tiny: Checkpoints) -> None:
    """With `close`, after which a step starts another; or when the core is deleted."""
    ahead = Overlap(True)
    for _ in range(2):
        ahead.during(lambda: None, lambda: None, lambda: None, 0.0)
        (thread,) = second()
        ahead.close()
        assert not thread.is_alive()
    ahead.during(lambda: None, lambda: None, lambda: None, 0.0)
    (thread,) = second()
    del ahead
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_short_jobs_stay_in_the_stepping_thread(tiny: Checkpoints) -> None:
    engine = core(tiny, None)
    engine.add("a", Completion((2, 3), 9, sampling=GREEDY, constraint=Automaton.sample(1)))
    while engine.live:
        engine.step()
    assert not second()
    threads: list[threading.Thread] = []
    ahead = Overlap(None)
    for seconds in (0.0, 1.0):
        ahead.during(lambda: None, lambda: threads.append(threading.current_thread()), lambda: None, seconds)
    assert threads == [threading.main_thread(), *second()] and len(threads) == 2
    ahead.close()


@examples(20)
@given(seed=st.integers(0, 2**64))
def test_sampled_requests_say_the_same(tiny: Checkpoints, seed: int) -> None:
    """With a seed, and with room for all drafts, what is drawn does not depend on which thread did what."""
    answers = []
    for overlap in (False, True):
        rng = random.Random(seed)
        k, budget = rng.choice(((0, 8), (0, 33), (3, 512)))
        engine = core(tiny, overlap, draft_tokens=k, max_batch=4, max_batched_tokens=budget)
        wanted = {}
        for i in range(6):
            prompt = [rng.randrange(2, 97) for _ in range(rng.choice((1, 5, 20, 40)))]
            constraint = Automaton.sample(rng.randrange(9)) if rng.random() < 0.5 else None
            wanted[str(i)] = Completion(tuple(prompt), 20, sampling=Sampling(seed=i), constraint=constraint)
        answers.append(run(engine, wanted))
    assert answers[0] == answers[1]
