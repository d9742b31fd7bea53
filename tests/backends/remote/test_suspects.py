"""Which prompt servers die of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.suspects import Suspects


def sent(suspects: Suspects, *prompts: str, server: str = "one") -> bool:
    """They are there together when it dies."""
    for prompt in prompts:
        suspects.enter(prompt, server)
    blamed = suspects.died(server)
    for prompt in prompts:
        suspects.leave(prompt, server, answered=False)
    return blamed


def answered(suspects: Suspects, prompt: str, server: str = "one") -> None:
    suspects.enter(prompt, server)
    suspects.leave(prompt, server, answered=True)


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
    answered(suspects, "other")
    assert not suspects.alone("other")
    sent(suspects, "poison")
    assert suspects.convicted("poison") and not suspects.convicted("other")


def test_a_prompt_that_is_answered_is_not_suspected() -> None:
    suspects = Suspects()
    for _ in range(5):
        assert not sent(suspects, "x")
        answered(suspects, "x", "two")
    assert not suspects.convicted("x")


def test_the_same_prompt_many_times_is_one() -> None:
    suspects = Suspects()
    assert not sent(suspects, "x", "x", "x")
    assert not suspects.alone("x")


def test_after_two_deaths_a_prompt_goes_nowhere_new() -> None:
    suspects = Suspects()
    sent(suspects, "poison", "other", server="one")
    assert suspects.places("poison") is None
    sent(suspects, "poison", server="two")
    assert suspects.places("poison") == {"one", "two"} and suspects.places("other") is None
    answered(suspects, "poison", "two")
    assert suspects.places("poison") is None


def test_who_stays_is_there_at_each_death() -> None:
    """As a request is whose engine comes back to it."""
    suspects = Suspects()
    suspects.enter("x", "one")
    suspects.enter("y", "two")
    for _ in range(2):
        suspects.died("one")
    assert suspects.alone("x") and not suspects.alone("y")
    assert (suspects.deaths("one"), suspects.deaths("two")) == (2, 0)


@given(st.lists(st.sets(st.sampled_from("abcd"))))
def test_nobody_is_convicted_of_two_deaths(deaths: list[set[str]]) -> None:
    suspects = Suspects()
    for there in deaths:
        sent(suspects, *there)
    for prompt in "abcd":
        at = sum(prompt in there for there in deaths)
        assert suspects.alone(prompt) == (at >= 2)
        assert at >= 3 or not suspects.convicted(prompt)
