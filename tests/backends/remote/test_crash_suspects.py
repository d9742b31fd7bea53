"""How often a prompt that was running when servers died is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.crash_suspects import MOST_DEATHS, WINDOW_S, CrashSuspects
from dovetail.backends.supervised.engine import CRASH_WINDOW_S, MOST_CRASHES
from dovetail.errors import InvalidRequest


def crash(suspects: CrashSuspects, *prompts: str, now: float = 0.0) -> None:
    """A server dies while it runs `prompts`."""
    for prompt in prompts:
        suspects.begin(prompt, "server")
    suspects.died("server", now)
    for prompt in prompts:
        suspects.end(prompt, "server", answered=False)


def refused(suspects: CrashSuspects, prompt: str, now: float = 0.0) -> bool:
    try:
        suspects.check(prompt, now)
    except InvalidRequest:
        return True
    return False


def test_one_prompt_does_not_use_up_the_restarts() -> None:
    assert MOST_DEATHS < MOST_CRASHES and WINDOW_S >= CRASH_WINDOW_S


@given(st.lists(st.floats(0, 3 * WINDOW_S), max_size=40))
def test_a_prompt_is_sent_to_at_most_three_deaths_in_any_window(times: list[float]) -> None:
    suspects, deaths = CrashSuspects(), list[float]()
    for now in sorted(times):
        if not refused(suspects, "poison", now):
            crash(suspects, "poison", now=now)
            deaths.append(now)
        assert sum(death > now - WINDOW_S for death in deaths) <= MOST_DEATHS


@given(st.lists(st.sets(st.sampled_from("abcd"))))
def test_a_prompt_is_refused_by_the_deaths_it_was_running_at(deaths: list[set[str]]) -> None:
    suspects = CrashSuspects()
    for running in deaths:
        crash(suspects, *running)
    for prompt in "abcd":
        assert refused(suspects, prompt) == (sum(prompt in running for running in deaths) >= MOST_DEATHS)


def test_an_answer_sets_the_count_to_zero() -> None:
    suspects = CrashSuspects()
    for _ in range(5):
        crash(suspects, "x")
        crash(suspects, "x")
        assert not refused(suspects, "x")
        suspects.begin("x", "other server")
        suspects.end("x", "other server", answered=True)


def test_one_death_is_counted_once() -> None:
    """Several requests may run one prompt, and each of them may report the death."""
    suspects = CrashSuspects()
    for _ in range(3):
        suspects.begin("x", "server")
    for _ in range(3):
        suspects.died("server", 0.0)
        suspects.end("x", "server", answered=False)
    crash(suspects, "x")
    assert not refused(suspects, "x")


def test_a_request_that_has_ended_is_not_counted() -> None:
    suspects = CrashSuspects()
    for _ in range(MOST_DEATHS):
        suspects.begin("x", "server")
        suspects.end("x", "server", answered=False)
        crash(suspects, "y")
    assert refused(suspects, "y") and not refused(suspects, "x")


def test_a_refusal_says_why() -> None:
    suspects = CrashSuspects()
    for _ in range(MOST_DEATHS):
        crash(suspects, "x")
    with pytest.raises(InvalidRequest, match="the engine died 3 times while it ran this prompt"):
        suspects.check("x", 1.0)
