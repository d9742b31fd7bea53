"""A failure of one request changes no other: constraints, drafters and weights that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, Sampling, TokenBatch, total
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Draft, Observed
from dovetail.engine.request import Request
from dovetail.engine.settings import EngineSettings
from dovetail.errors import CheckpointError, EngineError
from tests.engine.checkpoints import ByteTokenizer, load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton
from tests.engine.drafters import Oracle, Peaked, use

GREEDY = Sampling(temperature=0)


class PanicException(BaseException):
    """As a library in Rust raises it."""


class Failing(Automaton):
    """Allows everything, and fails in a method once so many tokens are taken."""

    def __init__(self, method: str, after: int, error: type[BaseException] = RuntimeError) -> None:
        super().__init__([dict.fromkeys(range(97), 0)])
        self._method, self._after, self._error = method, after, error

    def _fail(self, method: str) -> None:
        if method == self._method and len(self._states) > self._after:
            raise self._error("broken")

    def fill(self, row: memoryview) -> None:
        self._fail("fill")
        super().fill(row)

    def advance(self, token: int) -> bool:
        self._fail("advance")
        return super().advance(token)

    def rollback(self, count: int) -> None:
        self._fail("rollback")
        super().rollback(count)

    def forced(self, limit: int) -> list[int]:
        self._fail("forced")
        return []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"), eos_token_id=0)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))


def core(target: Path, drafter: Path | None, k: int = 3, **options: Any) -> LLMCore:
    return load_core(target, drafter, draft_tokens=k, **options)


def outcomes(core: LLMCore, completions: dict[str, Completion]) -> dict[str, list[int | str]]:
    """Every request's tokens, and behind them the message of the error that ended it."""
    out: dict[str, list[int | str]] = {name: [] for name in completions}
    for name, completion in completions.items():
        core.add(name, completion)
    while core.live:
        for name, outcome in core.step():
            if isinstance(outcome, TokenBatch):
                out[name] += outcome.ids
            else:
                out[name].append(outcome.message)
        core.check_integrity()
    return out


def plain(prompt: Sequence[int], **fields: Any) -> Completion:
    return Completion(tuple(prompt), 16, sampling=GREEDY, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError, PanicException])
@pytest.mark.parametrize("method", ["fill", "advance", "rollback", "forced"])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_constraint_that_fails(
    target: Path, drafter: Path, method: str, after: int, error: type[BaseException]
) -> None:
    """Wherever it does: the others say what they say alone, and it ends where it ends without drafts."""
    alone = outcomes(core(target, None, 0), {"x": plain((2, 3)), "y": plain((9, 8, 7))})
    truth = {"bad": [t for t in outcomes(core(target, None, 0), {"bad": plain((4, 5))})["bad"] if isinstance(t, int)]}
    undrafted = outcomes(core(target, None, 0), {"bad": plain((4, 5), constraint=Failing(method, after, error))})["bad"]
    wanted = {"x": plain((2, 3)), "bad": plain((4, 5)), "y": plain((9, 8, 7))}
    oracles = [
        use(core(target, drafter, async_scheduling=overlap), Oracle(truth | alone, wrong=0.0))  # type: ignore[dict-item]
        for overlap in (False, True)
    ]
    for fast in (core(target, drafter), *oracles):
        wanted["bad"] = plain((4, 5), constraint=Failing(method, after, error))
        out = outcomes(fast, wanted)
        assert {name: out[name] for name in alone} == alone
        if method in ("fill", "advance"):
            assert out["bad"] == undrafted


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_dead_end_behind_a_draft(target: Path, drafter: Path, k: int) -> None:
    """Every token up to it is delivered, then the error that says so, as without drafts."""
    moves: list[dict[int, int]] = [{5: 1}, {6: 2}, {7: 3}, {}]
    truth = outcomes(core(target, None, 0), {"a": plain((2, 3), constraint=Automaton(moves))})
    assert truth["a"][:3] == [5, 6, 7] and "allows no token" in str(truth["a"][3])
    fast = use(core(target, drafter, k), Oracle({"a": [5, 6, 7, 8]}, wrong=0.0))
    assert outcomes(fast, {"a": plain((2, 3), constraint=Automaton(moves))}) == truth


def test_weights_that_are_no_numbers(target: Path, drafter: Path, tmp_path: Path) -> None:
    """A request that meets them ends with an error, sampled or greedy; its neighbour does not notice."""
    sick = tmp_path / "sick"
    sick.mkdir()
    tensors = load_file(target / "model.safetensors")
    alone = outcomes(core(target, None, 0), {"x": plain((2, 3))})
    unsaid = next(token for token in range(4, 97) if token not in alone["x"])
    tensors["model.embed_tokens.weight"][unsaid] = torch.inf
    save_file(tensors, sick / "model.safetensors")
    (sick / "config.json").write_text((target / "config.json").read_text())
    for sampling in (GREEDY, Sampling(seed=1)):
        bad = Completion((unsaid, 4), 9, sampling=sampling, logprobs=2)
        out = outcomes(core(sick, drafter), {"x": plain((2, 3)), "bad": bad})
        assert out["x"] == alone["x"] and out["bad"] == ["the model computed a value that is not a finite number"]


def test_a_drafter_that_computes_no_numbers(target: Path, drafter: Path, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    sick.mkdir()
    tensors = load_file(drafter / "model.safetensors")
    tensors["fc.weight"][0, 0] = torch.nan
    save_file(tensors, sick / "model.safetensors")
    (sick / "config.json").write_text((drafter / "config.json").read_text())
    truth = run(core(target, None, 0), {"x": plain((2, 3))})
    out = outcomes(core(target, sick), {"x": plain((2, 3)), "y": Completion((4, 5), 9, sampling=Sampling(seed=1))})
    assert out["x"] == truth["x"] and len(out["y"]) == 9


@pytest.mark.parametrize("method", ["propose", "observe"])
def test_a_drafter_that_fails(target: Path, drafter: Path, method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its requests go on without drafts, the log and a counter show it, and the next request has drafts again."""
    truth = run(core(target, None, 0), {"x": plain((2, 3)), "y": plain((4, 5))})
    engine = core(target, drafter)

    class Once(Oracle):
        failed = False

        def _maybe(self, which: str) -> None:
            if which == method and not Once.failed:
                Once.failed = True
                raise PanicException("out of memory")

        def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
            self._maybe("propose")
            return super().propose(requests, counts)

        def observe(self, observed: Sequence[Observed]) -> None:
            self._maybe("observe")
            super().observe(observed)

    use(engine, Once(truth, wrong=0.0))
    assert run(engine, {"x": plain((2, 3))})["x"] == truth["x"]
    assert engine.counters().drafted == 0 and total(engine.gauges(), "drafting_failures_total") == 1
    assert "drafting failed" in caplog.text
    assert run(engine, {"y": plain((4, 5))})["y"] == truth["y"] and engine.counters().drafted > 0


def test_drafts_take_nothing_from_others(target: Path, drafter: Path) -> None:
    """However small the budget: everybody who decodes gets a token in every step, and prompts get their part."""
    engine = use(core(target, drafter, 8, max_batch=8, max_batched_tokens=12), Peaked({3: 1.0}))
    for i in range(8):
        engine.add(str(i), Completion((i + 2,) * 5, 20, sampling=GREEDY))
    begun: set[str] = set()
    steps = 0
    while engine.live:
        got = {name for name, _ in engine.step()}
        waiting = {request.id for request in engine.scheduler.running if request.id in begun} - got
        assert not waiting
        begun |= got
        steps += 1
    assert steps < 40


def test_a_window_never_leaves_its_table(target: Path) -> None:
    """A prompt whose last block begins with its last token, all else found: no drafts before that is computed."""
    engine = core(target, target, 15, max_batched_tokens=4, max_batch=2)
    prompt = tuple((i * 7) % 90 + 2 for i in range(33))
    first = run(engine, {"a": plain(prompt)})["a"]
    assert run(engine, {"b": plain(prompt)})["b"] == first


def test_numbers_of_prompts(target: Path) -> None:
    """Preemption counts no prompt twice, and the first batch says how much of it was found."""
    engine = core(target, None, 0, context=64, kv_cache_memory_bytes=1, max_batch=4)
    prompts = {str(i): tuple((i + j) % 90 + 2 for j in range(20)) for i in range(4)}
    run(engine, {name: plain(prompt) for name, prompt in prompts.items()})
    gauges = engine.gauges()
    assert total(gauges, "preemptions_total") > 0 and total(gauges, "prompt_tokens_total") == 80
    engine.add("again", plain(prompts["3"]))
    batches = []
    while engine.live:
        batches += [outcome for _, outcome in engine.step() if isinstance(outcome, TokenBatch)]
    assert batches[0].cached == 16 and not any(batch.cached for batch in batches[1:])


def test_the_cache_tells_nothing_to_another_salt(target: Path) -> None:
    engine = core(target, None, 0)
    prompt = tuple(range(2, 60))

    def cached(name: str, salt: str | None) -> int:
        engine.add(name, msgspec.structs.replace(plain(prompt), cache_salt=salt))
        found = 0
        while engine.live:
            found += sum(batch.cached or 0 for _, batch in engine.step() if isinstance(batch, TokenBatch))
        return found

    assert engine.info.salts_cache
    found = [cached(f"{i}", salt) for i, salt in enumerate((None, "a", "b", "a", None, "b"))]
    assert found[:3] == [0, 0, 0] and all(number >= 32 for number in found[3:])


def test_a_step_that_fails_with_nobody_running(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the first in line, and is not tried for ever."""
    engine = core(target, None, 0)
    begin = engine.scheduler.tables.begin

    def broken(owner: str, *prompt: Any) -> int:
        if owner == "bad":
            raise MemoryError
        return begin(owner, *prompt)

    monkeypatch.setattr(engine.scheduler.tables, "begin", broken)
    engine.add("bad", plain((2, 3)))
    engine.add("good", plain((2, 3)))
    with pytest.raises(MemoryError):
        engine.step()
    assert engine.cancel_running() == ["bad"]
    while engine.live:
        engine.step()


def test_a_load_that_panics(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*arguments: Any, **options: Any) -> None:
        raise PanicException("rust")

    monkeypatch.setattr("dovetail.backends.embedded.tokenizer", lambda path: ByteTokenizer())
    monkeypatch.setattr("dovetail.backends.embedded.LLMCore.load", panic)
    engine = EmbeddedEngine(target, None, EngineSettings(draft_tokens=0))
    with pytest.raises(EngineError, match="rust"):
        asyncio.run(asyncio.wait_for(engine.start(), 30))


def test_a_second_start_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.embedded.tokenizer", lambda path: ByteTokenizer())

    async def twice() -> None:
        engine = EmbeddedEngine(target, None, EngineSettings(draft_tokens=0, threads=1))
        await engine.start()
        try:
            with pytest.raises(EngineError, match="already"):
                await engine.start()
        finally:
            await engine.stop()

    asyncio.run(twice())


@pytest.mark.parametrize("d2t", [torch.zeros(5, dtype=torch.int64), torch.zeros(97)])
def test_a_map_that_is_none(target: Path, tmp_path: Path, d2t: torch.Tensor) -> None:
    folder = write_drafter(tmp_path / "drafter")
    save_file(load_file(folder / "model.safetensors") | {"d2t": d2t}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="d2t"):
        core(target, folder)


def test_a_map_between_vocabularies_of_one_size(target: Path, tmp_path: Path) -> None:
    """d2t may permute: it is read wherever it is."""
    plain_drafter = write_drafter(tmp_path / "plain")
    mapped = tmp_path / "mapped"
    mapped.mkdir()
    tensors = load_file(plain_drafter / "model.safetensors")
    turned = torch.roll(torch.arange(97), 1)
    tensors["d2t"] = turned - torch.arange(97)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][turned].contiguous()
    save_file(tensors, mapped / "model.safetensors")
    (mapped / "config.json").write_text(json.dumps(json.loads((plain_drafter / "config.json").read_text())))
    counts = []
    for folder in (plain_drafter, mapped):
        engine = core(target, folder)
        run(engine, {"a": plain((2, 3, 4))})
        counts.append((engine.counters().drafted, engine.counters().accepted))
    assert counts[0] == counts[1]
