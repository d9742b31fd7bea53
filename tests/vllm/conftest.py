"""A real vLLM on CPU: DOVETAIL_VLLM_CPU names the Python of an environment that has it, and Dovetail in it.

setup.sh makes one. One module runs at a time: each has one server, or two at a time that have
little to do, and leaves nothing running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm import asking, processes
from tests.vllm.processes import dovetail, up

VARIABLE = "DOVETAIL_VLLM_CPU"


@pytest.fixture(scope="session")
def program() -> Path:
    """The `vllm` of that environment."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with vLLM on CPU: setup.sh makes one")
    return Path(python).with_name("vllm")


@pytest.fixture(scope="session", autouse=True)
def settings(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Environment variables that vLLM needs on a CPU, with new folders for everything that it and Dovetail write."""
    folder = tmp_path_factory.mktemp("vllm")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"):
            (folder / name).mkdir()
            patch.setenv(name, str(folder / name))
        # Kept: what it finds out about an architecture, by a process that imports all of vLLM.
        patch.setenv("VLLM_CACHE_ROOT", str(program.parents[1] / ".cache"))
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield folder


@pytest.fixture(scope="session", autouse=True)
def adopted() -> None:
    processes.adopt()


@pytest.fixture(scope="module", autouse=True)
def nothing_left(settings: Path) -> Iterator[None]:
    """Set up before a module's servers, and so looked at after them."""
    yield
    processes.nothing_left()


@pytest.fixture(scope="session")
def embedded(settings: Path) -> dict[str, asking.Answers]:
    """The embedded engine's answers without a drafter, by the level of `strict`, and with schemas by the budget."""
    words = ("--draft-tokens", "0", "--context", "1024", "--dtype", "float32", "--served-model-name", asking.MODEL)
    asked: dict[str, Any] = dict(asking.requests())
    with up(dovetail(*words)) as server:
        answers = {strict: asking.ids(server.url, asked, strict=strict) for strict in ("off", "schema")}
        for budget in asking.BUDGETS:
            answers[f"budget {budget}"] = asking.ids(server.url, asked, strict="schema", reasoning_budget=budget)
        return answers
