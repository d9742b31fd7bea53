"""An engine whose target is divided over processes: the same ids, one clear error where a rank is lost, none left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, MetricSample, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.loading import _token_bytes
from dovetail.engine.models.base import ForwardBatch, Span
from dovetail.engine.parallel.channel import Forward, batch_of, forward_order, packed
from dovetail.engine.parallel.group import RankLost
from dovetail.engine.parallel.workers import LedModel
from dovetail.engine.settings import EngineSettings
from dovetail.engine.weights import inspect_target
from dovetail.errors import EngineError
from tests.engine.checkpoints import (
    LATENT,
    MLA_DRAFTER,
    ByteTokenizer,
    load_core,
    run,
    write_drafter,
    write_llama,
    write_mtp_target,
)

DIVISIBLE: dict[str, Any] = {"vocab_size": 100}
DRAFTERS: dict[str, Any] = {"none": None, "mtp": "mtp", "lookup": "lookup", "eagle3": None, "draft model": None}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp_target(tmp_path_factory.mktemp("target"), **DIVISIBLE, **LATENT)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str | None]:
    """Of every kind; the one of EAGLE-3 shares the target's head."""
    folder = tmp_path_factory.mktemp("drafters")
    own = write_drafter(folder / "eagle3", DIVISIBLE, base=MLA_DRAFTER | DIVISIBLE | {"draft_vocab_size": 100}, own=())
    model = write_llama(folder / "model", num_hidden_layers=1, **DIVISIBLE)
    return DRAFTERS | {"eagle3": own, "draft model": model}


def wanted(sampled: bool = False) -> dict[str, Completion]:
    return {
        f"r{i}": Completion(
            tuple((j * 7 + i // 2) % 95 + 2 for j in range(10 + 20 * i)),
            12,
            sampling=Sampling(temperature=0.7 if sampled and i % 2 else 0, seed=i),
        )
        for i in range(4)
    }


def alive(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.pid for process in processes if process.poll() is None]


def running(pid: int) -> bool:
    """Whether a process, whoever's child it is, runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_of(core: LLMCore) -> list[subprocess.Popen[bytes]]:
    assert isinstance(core.models.target, LedModel)
    return [worker.process for worker in core.models.target._workers._workers]


def test_a_batch_is_the_same_when_it_arrives() -> None:
    spans = (Span(0, 1, slice(3, 9)), Span(1, 2, torch.tensor([5, 4, 70_000])))
    flat = torch.tensor([[1, 2, 3], [5, 1, 2], [8, 4, 70_000]])
    sent = forward_order(ForwardBatch(*flat, spans))
    arrived = batch_of(sent)
    assert torch.equal(torch.stack((arrived.tokens, arrived.positions, arrived.rows)), flat)
    assert arrived.spans[0] == spans[0] and arrived.spans[1].start == 1 and arrived.spans[1].length == 2
    assert torch.equal(torch.as_tensor(arrived.spans[1].rows), torch.as_tensor(spans[1].rows))
    assert isinstance(sent, Forward) and len(packed(sent)) < 200


def test_a_rank_needs_its_share_of_the_cache(target: Path) -> None:
    checkpoint = inspect_target(target)

    def token_bytes(**settings: Any) -> int:
        return _token_bytes(checkpoint, None, EngineSettings(draft_tokens=0, **settings))

    latent = 3 * (16 + 8) * 4
    assert token_bytes() == token_bytes(tensor_parallel_size=2) == latent
    assert token_bytes(tensor_parallel_size=4, decode_context_parallel_size=4) == latent // 4
    both = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2, "kv_cache_dtype": "fp8"}
    assert token_bytes(**both) == latent // 4 // 2


def test_what_cannot_be_divided_is_refused_before_a_process_starts(target: Path, tmp_path: Path) -> None:
    for settings, reason in (
        ({"tensor_parallel_size": 3}, "3 ranks cannot divide 4 attention heads"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 4}, "needs a multiple of them"),
    ):
        with pytest.raises(EngineError, match=reason):
            load_core(target, **settings)
    with pytest.raises(EngineError, match="tensor_parallel_size must be 1 or more, not 0"):
        EngineSettings(draft_tokens=0, tensor_parallel_size=0)


TWO = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
FOUR = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2, "context_interleave": 16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "settings"),
    [
        *(pytest.param(drafter, TWO, id=f"{drafter}-2") for drafter in DRAFTERS),
        # Four ranks with the other drafters: a proof.
        *(
            pytest.param(drafter, FOUR, id=f"{drafter}-4, 2", marks=() if drafter == "mtp" else pytest.mark.proof)
            for drafter in DRAFTERS
        ),
    ],
)
def test_ids_are_those_of_one_rank(
    target: Path, drafters: dict[str, Path | str | None], drafter: str, settings: dict[str, Any]
) -> None:
    """Prompts in parts, a shared prefix, a cache so small that requests are preempted, K + 1 rows, sampled requests."""
    both = []
    for ranks in ({}, settings):
        small = {"max_batch": 3, "max_batched_tokens": 33, "context": 96, "kv_cache_memory_bytes": 1}
        core = load_core(target, drafters[drafter], draft_tokens=3 if drafter != "none" else 0, **small, **ranks)
        greedy = run(core, wanted())
        again = run(core, wanted(sampled=True))
        core.check_integrity()
        both.append((greedy, again))
        if ranks:
            started = processes_of(core)
            assert len(alive(started)) == settings["tensor_parallel_size"] - 1
            core.close()
            assert not alive(started)
            with pytest.raises(RankLost, match="the engine's ranks have ended"):
                run(core, {"late": wanted()["r0"]})
            core.cancel("late")
    assert both[0] == both[1]


@pytest.fixture
def core(target: Path) -> Iterator[LLMCore]:
    core = load_core(target, "mtp", draft_tokens=3, tensor_parallel_size=4, rank_deadline=15.0)
    yield core
    core.close()
    assert not alive(processes_of(core))


@pytest.mark.slow
def test_a_greedy_draft_step_sends_8_bytes_a_row(core: LLMCore) -> None:
    """In place of the vocabulary's part, 4 bytes a token. MTP's head is the target's, which is divided."""
    assert isinstance(core.models.target, LedModel)
    group: Any = core.models.target._group
    hidden = torch.zeros(5, 48)
    with torch.inference_mode():
        sent = []
        for way in (core.models.target.best, core.models.target.logits):
            before = group.sent["gather"]
            way(hidden)
            sent.append(group.sent["gather"] - before)
    assert sent == [5 * 8 * 3, 5 * 25 * 4 * 3]
    run(core, wanted())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "rank 2 of 4 was killed by SIGKILL"),
        pytest.param(signal.SIGSTOP, "rank 2 of 4 did not answer within 15 s", marks=pytest.mark.proof),
    ],
)
def test_a_lost_rank_ends_the_engine(core: LLMCore, number: signal.Signals, reason: str) -> None:
    core.add("a", wanted()["r0"])
    core.step()
    started = processes_of(core)
    os.kill(started[1].pid, number)
    for _ in range(2):
        with pytest.raises(RankLost, match=f"{reason}; the engine has ended its 4 ranks"):
            while True:
                core.step()
    assert not alive(started)
    core.cancel("a")


@pytest.mark.slow
def test_a_rank_that_fails_says_why(core: LLMCore) -> None:
    """Here with rows of the cache that do not exist, of which rank 0 itself reads none."""
    model: Any = core.models.target
    with pytest.raises(RankLost, match=r"rank 1 of 4 failed: .*index"), model._workers.watched():
        model._workers._workers[0].channel.send(
            packed(forward_order(ForwardBatch(*torch.tensor([[1], [0], [10**9]]), (Span(0, 1, slice(0, 1)),)))), 5.0
        )
        model._group.from_first(torch.zeros(1))
    assert not alive(processes_of(core))


@pytest.mark.slow
def test_requests_of_a_served_engine_end_with_the_reason(target: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(draft_tokens=0, tensor_parallel_size=2, threads=1)
        engine = EmbeddedEngine(target, None, settings)
        await engine.start()
        core = engine._core
        assert core is not None
        started = processes_of(core)
        stream = engine.complete(Completion((1, 2, 3), 200, sampling=Sampling(temperature=0), ignore_eos=True))
        await anext(stream)
        started[0].kill()
        with pytest.raises(RankLost, match="rank 1 of 2 was killed by SIGKILL"):
            async for _ in stream:
                pass
        with pytest.raises(RankLost, match="rank 1 of 2"):
            await anext(engine.complete(Completion((1,), 2)))
        assert engine.gauges() == [MetricSample("up", {}, 0)]
        await engine.stop()
        assert not alive(started)

    import dovetail.backends.embedded as embedded

    patch = pytest.MonkeyPatch()
    patch.setattr(embedded, "tokenizer", lambda path: ByteTokenizer())
    with patch.context():
        asyncio.run(main())
    patch.undo()


@pytest.mark.slow
def test_ranks_end_when_their_engine_is_killed(target: Path, tmp_path: Path) -> None:
    """A process that loads an engine, prints the ids of the others, and is killed."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.engine.checkpoints import load_core\n"
        "core = load_core(Path(sys.argv[1]), tensor_parallel_size=2)\n"
        "print(*[worker.process.pid for worker in core.models.target._workers._workers], flush=True)\n"
        "time.sleep(600)\n"
    )
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, str(script), str(target)], stdout=subprocess.PIPE, text=True, cwd=root, env=environment
    ) as engine:
        assert engine.stdout is not None
        other = int(engine.stdout.readline())
        engine.kill()
    until = time.monotonic() + 60
    while running(other):
        assert time.monotonic() < until, "the rank goes on without its engine"
        time.sleep(0.05)
