"""Biases through the engine: biases that delay an end or end an answer early, and those that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.completion import Completion, Sampling, TokenBatch
from dovetail.engine.core import LLMCore
from dovetail.errors import InvalidRequest
from tests.engine.checkpoints import load_core, run, write_drafter, write_target
from tests.engine.constraints import Automaton

PROMPT = (2, 3, 4, 5)
END = 1


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> LLMCore:
    root: Path = tmp_path_factory.mktemp("biases")
    return load_core(write_target(root / "target"), write_drafter(root / "drafter"), draft_tokens=3)


def answer(core: LLMCore, **fields: Any) -> list[int]:
    return run(core, {"x": Completion(PROMPT, 12, **fields)})["x"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("fields", "length"),
    [({}, 1), ({"min_tokens": 5}, 6), ({"min_tokens": 12}, 12), ({"ignore_eos": True}, 12)],
    ids=["free", "min_tokens", "as many as max_tokens", "ignore_eos"],
)
def test_the_end_is_held_back(core: LLMCore, temperature: float, fields: dict[str, Any], length: int) -> None:
    """A bias makes the end certain as soon as it may come."""
    sampling = Sampling(temperature, seed=3, logit_bias={END: 100.0})
    out = answer(core, sampling=sampling, **fields)
    assert len(out) == length and END not in out[:-1]
    assert (out[-1] == END) == (length < 12)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0])
@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 12}])
def test_a_constraint_that_allows_nothing_else_ends_the_answer(
    core: LLMCore, temperature: float, fields: dict[str, Any]
) -> None:
    sampling = Sampling(temperature, seed=3, logit_bias={END: 100.0}, repetition_penalty=1e6)
    out = answer(core, sampling=sampling, constraint=Automaton.ending(1, END, 7), **fields)
    assert len(out) == 8 and out.index(END) == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_token_ends_the_answer_and_counts_for_min_tokens(core: LLMCore, temperature: float) -> None:
    sampling = Sampling(temperature, seed=3, logit_bias={40: 100.0, 41: 90.0})
    assert answer(core, sampling=sampling, stop_token_ids=(40,)) == [40]
    assert answer(core, sampling=sampling, stop_token_ids=(40,), ignore_eos=True) == [40]
    assert answer(core, sampling=sampling, stop_token_ids=(40,), min_tokens=3) == [41, 41, 41, 40]


def test_a_token_that_is_biased_away_does_not_come(core: LLMCore) -> None:
    free = answer(core, sampling=Sampling(0))
    without = answer(core, sampling=Sampling(0, logit_bias={free[0]: -100.0}))
    assert free[0] not in without


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 13}, "min_tokens"),
        ({"stop_token_ids": (97,)}, "stop_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"sampling": Sampling(logit_bias={97: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(logit_bias={5: 100.5})}, "logit_bias"),
        ({"sampling": Sampling(logit_bias={5: float("nan")})}, "logit_bias"),
    ],
)
def test_bad_values_are_refused_by_name(core: LLMCore, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        core.add("x", Completion(PROMPT, 12, **fields))
    assert refused.value.param == param


def test_logprobs_are_those_of_the_model(core: LLMCore) -> None:
    """Before the bias, as before penalties."""
    core.add("x", Completion(PROMPT, 1, sampling=Sampling(0, logit_bias={40: 100.0}), logprobs=2))
    ((_, batch),) = core.step()
    assert isinstance(batch, TokenBatch) and batch.ids == (40,)
    assert batch.logprobs[0].logprob < batch.logprobs[0].top[0][1]
