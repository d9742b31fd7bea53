"""How likely drafts are to be accepted, from the figures of recipes."""

from __future__ import annotations

import pytest

from dovetail.plan import resolve
from dovetail.plan.defaults import expected_acceptance

pytestmark = pytest.mark.usefixtures("no_gpus")


def test_the_demo_begins_with_its_recipes_acceptance() -> None:
    """3.75 and 3.278 tokens a step, of 4."""
    own = expected_acceptance(resolve(None, {}).settings)
    assert own is not None
    lengths = [sum(share**i for i in range(4)) for share in (own - 0.06, own, own + 0.06)]
    assert lengths[0] < 3.278 < lengths[1] < 3.75 < lengths[2]


def test_what_a_recipe_did_not_name_was_not_measured() -> None:
    assert expected_acceptance(resolve(None, {"drafter": "none"}).settings) is None
    named = resolve(None, {}).value("drafter")
    assert expected_acceptance(resolve(None, {"drafter": named}).settings) is None
