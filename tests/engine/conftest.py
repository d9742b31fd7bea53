from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dovetail.completion import total
from dovetail.engine.core import LLMCore
from tests.engine import processors
from tests.engine.schedules import Checkpoints


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoints]:
    """Tiny checkpoints and their truths under one of `processors.EXACT`."""
    return functools.cache(lambda path: Checkpoints(tmp_path_factory.mktemp("tiny"), processors.path(path)))


@pytest.fixture(scope="session")
def tiny(tiny_by: Callable[[str], Checkpoints]) -> Checkpoints:
    return tiny_by("as served")


@pytest.fixture(autouse=True)
def _no_leaks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test, every core that it made is whole, has all its blocks back if nothing runs in it, and its
    thread ends when it is closed.

    And no drafter failed, which the engine would only log: what a test's drafter asserts would be lost.
    """
    cores: list[LLMCore] = []
    init = LLMCore.__init__

    @functools.wraps(init)
    def noted(self: LLMCore, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        cores.append(self)

    monkeypatch.setattr(LLMCore, "__init__", noted)
    yield
    for core in cores:
        core.close()
        core.check_integrity()
        gauges = core.gauges()
        assert not total(gauges, "drafting_failures_total") or "test_failures" in request.node.nodeid
        assert core.live or total(gauges, "free_blocks") == total(gauges, "total_blocks")
    assert not [thread.name for thread in threading.enumerate() if thread.name == "dovetail-overlap"]
