"""Every way of drafting that vLLM has on a CPU, and none, by `dovetail serve`: on, as its probe says, and exact."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vllm import asking, checkpoints
from tests.vllm.processes import dovetail, nothing_left, up


@dataclass(frozen=True)
class Case:
    """`model` writes what is served. `ends`: how the server does, once it has answered."""

    model: Callable[[Path], Path]
    words: Sequence[str]
    ends: signal.Signals
    threads: str = "auto"


CASES = {
    "EAGLE-3 that names its target, TP=2": Case(
        checkpoints.eagle3, ("--tensor-parallel-size", "2"), threads="0|1", ends=signal.SIGINT
    ),
    "MTP": Case(checkpoints.mtp, ("--method", "mtp"), ends=signal.SIGKILL),
    "n-gram": Case(checkpoints.going_round, ("--method", "ngram"), ends=signal.SIGTERM),
}
COMMON = ("--context", "512", "--dtype", "float32", "--served-model-name", asking.MODEL)
ASKED = asking.texts("Hello!", "one two three one two three one two", "Please wait.", max_tokens=48)


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_the_embedded_engine(program: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = case.model(tmp_path)
    common = (model, *COMMON, "--format", "kimi_k25")
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
        nothing_left()
    assert code == (-case.ends if case.ends == signal.SIGKILL else 0), server.printed
    assert len({token for _, answer in expected.values() for token in answer}) > 7


def test_the_demo_without_a_drafter(program: Path, embedded: dict[str, asking.Answers]) -> None:
    words = ("--engine", "vllm", "--vllm", program, "--engine-args=--enforce-eager", "--drafter", "none")
    with up(dovetail(*words, *COMMON)) as server:
        assert "speculation" not in server.printed
        for strict in ("off", "schema"):
            assert asking.ids(server.url, dict(asking.requests()), strict=strict) == embedded[strict]
        assert server.stop() == 0
