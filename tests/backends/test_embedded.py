"""The embedded engine as the gateway uses it: streams, cancellation, errors, shutdown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dovetail.backends import embedded
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, Engine, Sampling, TokenBatch, total
from dovetail.engine.settings import EngineSettings
from dovetail.errors import CheckpointError, ContextExceeded, EngineBusy, EngineError, InvalidRequest
from tests.engine.checkpoints import load_core, run, write_drafter, write_target

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    target, drafter = write_target(root / "target"), write_drafter(root / "drafter")
    _write_tokenizer(target)
    return target, drafter


def with_engine(
    folders: tuple[Path, Path | str],
    test: Callable[[EmbeddedEngine], Awaitable[None]],
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        settings = EngineSettings(**{"draft_tokens": 3, "threads": 1} | options)
        engine = EmbeddedEngine(*folders, settings, progress=progress)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 30)
        finally:
            await engine.stop()

    asyncio.run(main())


def test_it_tells_how_far_loading_is(folders: tuple[Path, Path]) -> None:
    steps: list[tuple[int, int]] = []

    async def test(engine: EmbeddedEngine) -> None:
        total = steps[-1][1]
        assert steps[-1] == (total, total) and total > 0
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)

    with_engine(folders, test, progress=lambda done, total: steps.append((done, total)))


def test_it_drafts_from_what_a_sequence_says_where_it_has_no_drafter(folders: tuple[Path, Path]) -> None:
    completion = Completion((2, 3, 4, 5) * 6, 60, sampling=GREEDY)

    async def test(engine: EmbeddedEngine) -> None:
        assert engine.info.draft_tokens == 5
        expected = run(load_core(folders[0], draft_tokens=5), {"alone": completion})
        assert await collect(engine.complete(completion)) == expected["alone"]
        assert total(engine.gauges(), "drafted_total") >= total(engine.gauges(), "accepted_total") > 0
        await all_free(engine)

    with_engine((folders[0], "lookup"), test, draft_tokens=5)


async def collect(stream: AsyncIterator[TokenBatch]) -> list[int]:
    return [token async for batch in stream for token in batch.ids]


async def all_free(engine: EmbeddedEngine) -> None:
    """Wait until every block is back; the worker takes a cancellation between two steps."""
    while True:
        gauges = engine.gauges()
        if total(gauges, "free_blocks") == total(gauges, "total_blocks") and not total(gauges, "running") + total(
            gauges, "waiting"
        ):
            return
        await asyncio.sleep(0.002)


def test_streams_what_the_core_generates(folders: tuple[Path, Path]) -> None:
    completions = {f"r{i}": Completion(tuple(range(2, 6 + 5 * i)), 20, sampling=GREEDY) for i in range(5)}
    expected = run(load_core(*folders), completions)

    async def test(engine: EmbeddedEngine) -> None:
        assert isinstance(engine, Engine)
        assert (engine.info.vocab_size, engine.info.eos_ids, engine.info.draft_tokens) == (97, (1,), 3)
        outputs = await asyncio.gather(*(collect(engine.complete(c)) for c in completions.values()))
        assert dict(zip(completions, outputs, strict=True)) == expected
        gauges = engine.gauges()
        by_position = total(gauges, "accepted_per_position_total")
        # What stood in a sequence's last step may have been cut by its end, so it is no measure.
        assert total(gauges, "drafted_total") >= total(gauges, "accepted_total") >= by_position > 0
        await all_free(engine)

    with_engine(folders, test)


def test_same_request_id_twice(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        completion = Completion((2, 3, 4), 8, sampling=GREEDY, request_id="twin")
        one, other = await asyncio.gather(collect(engine.complete(completion)), collect(engine.complete(completion)))
        assert one == other and one

    with_engine(folders, test)


def test_closing_the_stream_frees_its_blocks(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        async with aclosing(engine.complete(Completion((2, 3), 250, sampling=GREEDY))) as stream:
            await anext(stream)
            assert total(engine.gauges(), "free_blocks") < total(engine.gauges(), "total_blocks")
        await all_free(engine)

    with_engine(folders, test)


def test_cancelling_the_task_frees_its_blocks(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        tasks = [
            asyncio.create_task(collect(engine.complete(Completion((2, 3), 250, sampling=Sampling(seed=i)))))
            for i in range(6)
        ]
        while not total(engine.gauges(), "running"):
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await all_free(engine)

    with_engine(folders, test, max_batch=2)


def test_bad_requests_are_refused_and_the_engine_goes_on(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        for completion, error in [
            (Completion((), 5), InvalidRequest),
            (Completion((2,) * 64, 5), ContextExceeded),
            (Completion((97,), 5), InvalidRequest),
            (Completion((2,), 0), InvalidRequest),
            (Completion((2,), 5, sampling=Sampling(temperature=-1)), InvalidRequest),
            (Completion((2,), 5, sampling=Sampling(top_p=0)), InvalidRequest),
            (Completion((2,), 5, sampling=Sampling(top_k=0)), InvalidRequest),
            (Completion((2,), 5, draft_tokens=-1), InvalidRequest),
        ]:
            with pytest.raises(error):
                await collect(engine.complete(completion))
        # max_tokens beyond the context is cut, not refused.
        assert len(await collect(engine.complete(Completion((2,) * 60, 500, sampling=GREEDY)))) <= 4
        await all_free(engine)

    with_engine(folders, test, context=64)


class PanicException(BaseException):
    """As a Rust library raises it."""


def _panics(batch: object) -> None:
    raise PanicException("out of memory")


class _Broken:
    """A constraint whose code fails."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error or ZeroDivisionError("division by zero")

    def fill(self, row: memoryview) -> None:
        raise self._error

    def advance(self, token: int) -> bool:
        return True

    def rollback(self, count: int) -> None: ...

    def forced(self, limit: int) -> list[int]:
        raise self._error


@pytest.mark.filterwarnings("default")
def test_a_failing_step_ends_its_batch_and_the_engine_goes_on(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        with pytest.raises(EngineError, match="division"):
            await collect(engine.complete(Completion((2, 3), 9, constraint=_Broken())))
        with pytest.raises(EngineError, match="constraint failed: index out of bounds"):
            await collect(
                engine.complete(Completion((2, 3), 9, constraint=_Broken(PanicException("index out of bounds"))))
            )
        with pytest.raises(InvalidRequest, match="token id"):
            await collect(engine.complete(Completion(("two",), 9)))  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="could not be added"):
            await collect(engine.complete(Completion((2, 3), 9, sampling=None)))  # type: ignore[arg-type]
        model = engine._started().models.target
        forward, model.forward = model.forward, _panics  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="step failed: out of memory"):
            await collect(engine.complete(Completion((2, 3), 9)))
        model.forward = forward  # type: ignore[method-assign]
        assert await collect(engine.complete(Completion((2, 3), 9, sampling=GREEDY)))
        await all_free(engine)

    with_engine(folders, test)


def test_a_constraint_that_fails_ends_its_own_request_only(folders: tuple[Path, Path]) -> None:
    async def test(engine: EmbeddedEngine) -> None:
        alone = await collect(engine.complete(Completion((2, 3), 40, sampling=GREEDY)))
        neighbour = asyncio.create_task(collect(engine.complete(Completion((2, 3), 40, sampling=GREEDY))))
        with pytest.raises(EngineError, match="the constraint failed: division"):
            await collect(engine.complete(Completion((2, 3), 9, constraint=_Broken())))
        assert await neighbour == alone
        await all_free(engine)

    with_engine(folders, test)


def test_it_starts_after_a_start_that_failed(folders: tuple[Path, Path], tmp_path: Path) -> None:
    async def main() -> None:
        engine = EmbeddedEngine(tmp_path / "target", None, EngineSettings(draft_tokens=0, threads=1))
        with pytest.raises(CheckpointError):
            await engine.start()
        await engine.stop()
        (tmp_path / "target").symlink_to(folders[0])
        await engine.start()
        assert await asyncio.wait_for(collect(engine.complete(Completion((2, 3), 5, sampling=GREEDY))), 20)
        await engine.stop()

    asyncio.run(main())


def test_stop_ends_running_streams(folders: tuple[Path, Path]) -> None:
    async def main() -> None:
        engine = EmbeddedEngine(*folders, EngineSettings(draft_tokens=3, threads=1))
        with pytest.raises(EngineError, match="not running"):
            await collect(engine.complete(Completion((2,), 2)))
        await engine.start()
        task = asyncio.create_task(collect(engine.complete(Completion((2, 3), 250, sampling=Sampling(seed=1)))))
        while not total(engine.gauges(), "running"):
            await asyncio.sleep(0.001)
        await engine.stop()
        with pytest.raises(EngineBusy):
            await task
        with pytest.raises(EngineError, match="not running"):
            _ = engine.info

    asyncio.run(main())


def test_a_reader_that_stalls_ends_its_own_sequence(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_MAX_UNREAD", 40)
    completion = Completion((2, 3, 4), 100, sampling=GREEDY, logprobs=2)

    async def test(engine: EmbeddedEngine) -> None:
        reader = engine.complete(completion)
        first = await anext(reader)
        await all_free(engine)  # the engine has ended the sequence
        rest = []
        with pytest.raises(EngineBusy, match="not read as fast as it was generated"):
            async for batch in reader:
                rest.append(batch)
        assert first.ids and 10 <= sum(len(batch.ids) for batch in rest) < 90
        monkeypatch.undo()
        assert len(await collect(engine.complete(completion))) > 90, "one that reads gets all"

    with_engine(folders, test)


def test_a_bad_checkpoint_is_one_message(tmp_path: Path) -> None:
    async def main() -> None:
        engine = EmbeddedEngine(tmp_path, None, EngineSettings(draft_tokens=0))
        with pytest.raises(CheckpointError, match=str(tmp_path)):
            await engine.start()
        await engine.stop()

    asyncio.run(main())


def _write_tokenizer(path: Path) -> None:
    """A byte-level tokenizer of 97 single-byte tokens, so that the folder is whole."""
    letters = [chr(c) for c in [*range(33, 127), 161, 162, 163]]
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []},
    }
    (path / "tokenizer.json").write_text(json.dumps(spec))
