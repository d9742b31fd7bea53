"""The gate inside a real vLLM 0.32 on CPU: it closes and opens at its limits, and no text changes (law 12).

DOVETAIL_VLLM_CPU names the Python of an environment with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine.checkpoints import DRAFTER, write_drafter, write_mtp_target
from tests.engine.test_against_transformers import PROMPTS, write
from tests.engine.test_against_vllm import LLAMA, MLA
from tests.plugins.vllm.conftest import cache_in

K = 3
BELOW, MOST = 50, 2
MAX_TOKENS = [10, 18, 40, 48, 26]
# Each is forced to draft nothing in these steps.
CLOSED = (6, 26)
METHODS = ("eagle3", "mtp", "draft_model", "ngram")

Step = list[tuple[int, int, list[int], int]]


def _jobs(folder: Path) -> dict[str, dict[str, Any]]:
    llama = str(write(folder / "llama", "Llama", LLAMA))
    smaller = str(write(folder / "smaller", "Llama", LLAMA | {"num_hidden_layers": 1}))
    layers = str(write_mtp_target(folder / "mtp", **MLA))
    layer = DRAFTER["transformer_layer_config"] | {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
    }
    drafter = write_drafter(
        folder / "drafter",
        MLA,
        transformer_layer_config=layer,
        speculators_config=DRAFTER["speculators_config"] | {"verifier": {"name_or_path": llama, "architectures": []}},
        target_hidden_size=64,
        draft_vocab_size=64,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
    )
    drafting = {
        "eagle3": {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": K},
        "mtp": {"method": "mtp", "num_speculative_tokens": K},
        "draft_model": {"method": "draft_model", "model": smaller, "num_speculative_tokens": K},
        "ngram": {
            "method": "ngram",
            "num_speculative_tokens": K,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        },
    }
    asked = {"prompts": [list(prompt) for prompt in PROMPTS.values()], "max_tokens": MAX_TOKENS, "max_batch": 5}
    asked |= {"ignore_eos": True}
    off = {"gate": "off"}
    limits = off | {"speculate_below_context": BELOW, "speculate_up_to_batch": MOST}
    jobs: dict[str, dict[str, Any]] = {"llama": {"target": llama}, "deepseek": {"target": layers}}
    for method, speculation in drafting.items():
        its = {"target": layers if method == "mtp" else llama, "speculation": speculation}
        jobs[f"{method}, plain"] = its
        jobs[f"{method}, limits"] = its | {"gate": limits}
        jobs[f"{method}, forced"] = its | {"gate": off, "forced": {"closed": CLOSED}}
    eagle = {"target": llama, "speculation": drafting["eagle3"]}
    jobs["measured"] = eagle | {"gate": {"gate": "measured"}}
    jobs["context"] = eagle | {"gate": off | {"speculate_below_context": BELOW}}
    jobs["own"] = eagle | {"gate": off, "extra": {"draft_tokens": 1}}
    jobs["nothing drafts"] = {"target": llama, "gate": {}}
    jobs["unknown"] = eagle | {"gate": {"below": 3}, "refused": True}
    return {name: asked | job for name, job in jobs.items()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every job came to."""
    python = os.environ.get("DOVETAIL_VLLM_CPU")
    if not python:
        pytest.skip("DOVETAIL_VLLM_CPU names no Python of an environment with vLLM on CPU: tests/vllm/setup.sh")
    jobs = _jobs(tmp_path_factory.mktemp("checkpoints"))
    cache = cache_in(tmp_path_factory.mktemp("cache"), python)
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
    }

    def run(names: list[str]) -> dict[str, Any]:
        ran = subprocess.run(
            [python, str(Path(__file__).with_name("gated.py"))],
            env=os.environ | quiet,
            input=json.dumps([jobs[name] for name in names]),
            capture_output=True,
            encoding="utf-8",
            timeout=900,
        )
        assert ran.returncode == 0, ran.stderr[-5000:]
        return dict(zip(names, json.loads(ran.stdout), strict=True))

    with ThreadPoolExecutor(2) as pool:  # one core each
        halves = pool.map(run, (list(jobs)[::2], list(jobs)[1::2]))
        results = {name: job for half in halves for name, job in half.items()}
    assert len(list((cache / "dovetail").iterdir())) == 1  # what the measured one learned
    return results


def drafts(job: Mapping[str, Any]) -> dict[tuple[int, int], list[int]]:
    """What was verified, by request and its length."""
    return {(name, length): row for step in job["steps"] for name, length, row, _ in step}


def decided(job: Mapping[str, Any], reason: str) -> float:
    count: float = job["counts"].get(reason, 0)
    return count


@pytest.mark.parametrize("how", ["plain", "limits", "forced"])
@pytest.mark.parametrize("method", METHODS)
def test_text_is_that_of_no_drafts(method: str, how: str, done: dict[str, Any]) -> None:
    assert done[f"{method}, {how}"]["ids"] == done["deepseek" if method == "mtp" else "llama"]["ids"]
    assert any(drafts(done[f"{method}, {how}"]).values())


@pytest.mark.parametrize("case", ["measured", "context", "own", "nothing drafts"])
def test_text_stays_whatever_is_decided(case: str, done: dict[str, Any]) -> None:
    assert done[case]["ids"] == done["llama"]["ids"]


@pytest.mark.parametrize("method", METHODS)
def test_it_closes_and_opens_at_its_limits(method: str, done: dict[str, Any]) -> None:
    job = done[f"{method}, limits"]
    steps: list[Step] = job["steps"]
    for step in steps:
        for _, length, row, _ in step:
            assert not row or (length < BELOW and len(step) <= MOST)
    wide = [step for step in steps if len(step) > MOST]
    assert wide, "some steps were of too many"
    after = steps[steps.index(wide[-1]) + 1 :]
    assert any(row for step in after for _, _, row, _ in step), "it opened when they were few"
    assert any(length >= BELOW for step in after for _, length, _, _ in step), "and one request became too long"
    assert decided(job, "batch") > 0
    assert decided(job, "context") > 0
    assert decided(job, "draft") > 0
    plain = done[f"{method}, plain"]["steps"]
    assert any(row for step in plain if len(step) > MOST for _, _, row, _ in step), (
        "without a gate they are drafted for"
    )


def test_in_one_step_some_are_too_long_and_others_draft(done: dict[str, Any]) -> None:
    both = [
        step
        for step in done["context"]["steps"]
        if any(row for _, _, row, _ in step) and any(length >= BELOW for _, length, _, _ in step)
    ]
    assert both
    assert all(not row for step in both for _, length, row, _ in step if length >= BELOW)


@pytest.mark.parametrize("method", METHODS)
def test_drafters_miss_nothing_while_it_is_closed(method: str, done: dict[str, Any]) -> None:
    """After twenty steps without drafts they draft what they would have drafted."""
    forced, plain = done[f"{method}, forced"], drafts(done[f"{method}, plain"])
    steps: list[Step] = forced["steps"]
    first, last = CLOSED
    assert all(not row for step in steps[first:last] for _, _, row, _ in step)
    before = {place: row for place, row in drafts({"steps": steps[:first]}).items() if row}
    after = {place: row for place, row in drafts({"steps": steps[last:]}).items() if row}
    assert before
    assert len(after) > 5
    # Where a run was at the same length, it drafted the same.
    same = after.keys() & {place for place, row in plain.items() if row}
    assert same
    assert {place: after[place] for place in same} == {place: plain[place] for place in same}


def test_a_request_s_own_cap(done: dict[str, Any]) -> None:
    assert {len(row) for row in drafts(done["own"]).values()} == {0, 1}
    assert {len(row) for row in drafts(done["eagle3, plain"]).values()} >= {0, K}


def test_measured_it_stops_drafting_what_never_stands(done: dict[str, Any]) -> None:
    """Weights are random, so nearly no draft stands, and each takes a pass of the drafter."""
    steps: list[Step] = done["measured"]["steps"]
    last = [row for step in steps[-12:] for _, _, row, _ in step]
    assert sum(map(len, last)) < K * len(last) / 2
    assert decided(done["measured"], "cost") > 0


def test_a_setting_that_it_does_not_know(done: dict[str, Any]) -> None:
    assert "`below`" in done["unknown"]["refused"]
    assert "speculate_below_context" in done["unknown"]["refused"]
