"""Plans that a real vLLM cannot run: one message, an exit code of 2, and nothing left running."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.vllm import checkpoints
from tests.vllm.processes import dovetail, nothing_left, two_at_a_time, until

EAGER = "--engine-args=--enforce-eager"


def refused(program: Path, *words: str | Path, **variables: str) -> str:
    """The one complaint about it."""
    server = dovetail(*words, "--engine", "vllm", "--vllm", program, "--context", "512", **variables)
    try:
        code = server.end()
    finally:
        server.kill()
    assert code == 2, server.printed
    assert "Traceback" not in server.printed
    complaints = [line for line in server.lines if line.startswith("dovetail: ")]
    assert len(complaints) == 1, server.printed
    return complaints[0]


def test_no_such_model(program: Path) -> None:
    assert "there is no folder org/nothing" in refused(program, "org/nothing")


def test_a_port_in_use(program: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = dovetail("--engine", "vllm", "--vllm", program, port=port)
        assert server.end() == 2
    assert f"dovetail: cannot listen on 127.0.0.1:{port}: Address already in use" in server.printed


# --- what is found out while vLLM starts ------------------------------------------------------------------------------


def an_unknown_option(program: Path, folder: Path) -> None:
    complaint = refused(program, "--engine-args=--enforce-eagr")
    assert "vLLM has no --enforce-eagr: did you mean --enforce-eager or --no-enforce-eager?" in complaint


def not_enough_memory(program: Path, folder: Path) -> None:
    complaint = refused(program, EAGER, VLLM_CPU_KVCACHE_SPACE="9000")
    assert "Not enough memory: use less, or more to have: a shorter --context" in complaint


def a_drafter_for_another_model(program: Path, folder: Path) -> None:
    """Its config fits, its weights do not."""
    drafter = checkpoints.eagle3(folder)
    weights = load_file(drafter / "model.safetensors")
    weights["fc.weight"] = weights["fc.weight"][:, ::2].contiguous()
    save_file(weights, drafter / "model.safetensors")
    complaint = refused(program, drafter, "--format", "kimi_k25", EAGER)
    assert "loading the drafter, which may be another model's: --drafter none serves without it" in complaint


def killed_while_it_loads(program: Path, folder: Path) -> None:
    server = dovetail("--engine", "vllm", "--vllm", program, EAGER, "--context", "512")
    try:
        until(lambda: "loading weights" in server.printed, "the weights are being loaded", 300)
        family = server.family()
    finally:
        server.kill()
    assert len(family) > 2, "the supervisor, the API server, the engine's core, a worker"
    nothing_left(family)


def without_the_repairs(program: Path, folder: Path) -> None:
    """EAGLE-3 on MLA, which works only because the CPU build of vLLM is repaired (vllm-cpu/repairs). A vLLM that starts
    is mended: then the repair, and what says here that it is needed, may go."""
    complaint = refused(program, EAGER, "--dtype", "float32", VLLM_PLUGINS="dovetail")  # and no others
    assert "No common block size" in complaint


STARTS: tuple[Callable[[Path, Path], None], ...] = (
    killed_while_it_loads,
    not_enough_memory,
    without_the_repairs,
    a_drafter_for_another_model,
    an_unknown_option,
)


@pytest.fixture(scope="module")
def started(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    jobs = {start.__name__: partial(start, program, tmp_path_factory.mktemp("start")) for start in STARTS}
    with two_at_a_time(jobs) as done:
        yield done


@pytest.mark.parametrize("start", [start.__name__ for start in STARTS])
def test_it_does_not_start(started: dict[str, Future[None]], start: str) -> None:
    started[start].result()
