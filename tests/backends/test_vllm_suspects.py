"""Which prompt an engine dies of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.vllm.suspects import Suspects


def sent(suspects: Suspects, *prompts: str) -> bool:
    """They are there together when it dies."""
    for prompt in prompts:
        suspects.enter(prompt)
    blamed = suspects.died()
    for prompt in prompts:
        suspects.leave(prompt, answered=False)
    return blamed


def test_who_was_there_at_three_deaths_did_it() -> None:
    suspects = Suspects()
    assert not sent(suspects, "poison")
    assert not suspects.alone("poison")
    assert sent(suspects, "poison")
    assert suspects.alone("poison") and not suspects.convicted("poison")
    assert sent(suspects, "poison", "new")
    assert suspects.convicted("poison") and not suspects.convicted("new")


def test_of_several_the_third_death_tells() -> None:
    suspects = Suspects()
    sent(suspects, "poison", "other")
    assert sent(suspects, "poison", "other")
    assert not suspects.convicted("poison") and not suspects.convicted("other")
    assert suspects.alone("poison") and suspects.alone("other")
    suspects.enter("other")
    suspects.leave("other", answered=True)
    assert not suspects.alone("other")
    sent(suspects, "poison")
    assert suspects.convicted("poison") and not suspects.convicted("other")


def test_a_prompt_that_is_answered_is_not_suspected() -> None:
    suspects = Suspects()
    for _ in range(5):
        assert not sent(suspects, "x")
        suspects.enter("x")
        suspects.leave("x", answered=True)
    assert not suspects.convicted("x")


def test_the_same_prompt_many_times_is_one() -> None:
    suspects = Suspects()
    assert not sent(suspects, "x", "x", "x")
    assert not suspects.alone("x")


@given(st.lists(st.sets(st.sampled_from("abcd"))))
def test_nobody_is_convicted_of_two_deaths(deaths: list[set[str]]) -> None:
    suspects = Suspects()
    for there in deaths:
        sent(suspects, *there)
    for prompt in "abcd":
        at = sum(prompt in there for there in deaths)
        assert suspects.alone(prompt) == (at >= 2)
        assert at >= 3 or not suspects.convicted(prompt)
