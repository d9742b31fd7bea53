"""Every drafting method of vLLM on a CPU, and none, by `dovetail serve`: the probe sees drafts, and output is exact."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.vllm import asking, checkpoints
from tests.vllm.processes import dovetail, two_at_a_time, up


@dataclass(frozen=True)
class Case:
    """`model` writes what is served. `ends`: how the server does, once it has answered."""

    model: Callable[[Path], Path]
    words: Sequence[str]
    ends: signal.Signals
    threads: str = "auto"


CASES = {
    "MTP": Case(checkpoints.mtp, ("--method", "mtp"), ends=signal.SIGKILL),
    "EAGLE-3 that names its target, TP=2": Case(
        checkpoints.eagle3, ("--tensor-parallel-size", "2"), threads="0|1", ends=signal.SIGINT
    ),
    "n-gram": Case(checkpoints.going_round, ("--method", "ngram"), ends=signal.SIGTERM),
}
COMMON = ("--context", "512", "--dtype", "float32", "--served-model-name", asking.MODEL)
ASKED = asking.texts("Hello!", "one two three one two three one two", "Please wait.", max_tokens=48)
PLAIN = "the demo without a drafter"


@pytest.fixture(scope="module")
def served(
    program: Path, embedded: dict[str, asking.Answers], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    jobs = {name: partial(as_embedded, program, case, tmp_path_factory.mktemp("case")) for name, case in CASES.items()}
    with two_at_a_time({**jobs, PLAIN: partial(without_a_drafter, program, embedded)}) as done:
        yield done


@pytest.mark.parametrize("name", [*CASES, PLAIN])
def test_ids_are_those_of_the_embedded_engine(served: dict[str, Future[None]], name: str) -> None:
    served[name].result()


def as_embedded(program: Path, case: Case, folder: Path) -> None:
    common = (case.model(folder), *COMMON, "--format", "kimi_k25")
    words = ("--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager", *case.words)
    with (
        contextlib.closing(dovetail(*common, "--draft-tokens", "0")) as embedded,
        up(dovetail(*common, *words, VLLM_CPU_OMP_THREADS_BIND=case.threads)) as server,
    ):
        embedded.wait_until_up()  # it was, while vLLM started
        expected = asking.ids(embedded.url, ASKED)
        embedded.close()
        assert "speculation is on:" in server.printed, server.printed
        assert asking.ids(server.url, ASKED) == expected
        assert server.metrics()["dovetail_drafted_tokens_total"] > 0
        code = server.stop(case.ends)
    assert code == (-case.ends if case.ends == signal.SIGKILL else 0), server.printed
    assert len({token for _, answer in expected.values() for token in answer}) > 7


def without_a_drafter(program: Path, embedded: dict[str, asking.Answers]) -> None:
    words = ("--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager", "--drafter", "none")
    with up(dovetail(*words, *COMMON)) as server:
        assert "speculation" not in server.printed
        for strict in ("off", "schema"):
            assert asking.ids(server.url, dict(asking.requests()), strict=strict) == embedded[strict]
        for budget in asking.BUDGETS:
            answers = asking.ids(server.url, dict(asking.requests()), strict="schema", reasoning_budget=budget)
            assert answers == embedded[f"budget {budget}"]
        assert embedded["budget 3"] != embedded["schema"] == embedded["budget 30"]
        assert server.stop() == 0
