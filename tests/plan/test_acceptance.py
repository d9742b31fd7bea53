"""How likely drafts are to be accepted, from the figures of recipes."""

from __future__ import annotations

import pytest

from dovetail.checkpoints import hub
from dovetail.errors import CheckpointError
from dovetail.plan import resolve
from dovetail.plan.defaults import expected_acceptance

pytestmark = pytest.mark.usefixtures("no_gpus")


def test_the_demo_begins_with_its_recipes_acceptance() -> None:
    """3.75 and 3.278 tokens a step, of 4."""
    own = expected_acceptance(resolve(None, {}).settings)
    assert own is not None
    lengths = [sum(share**i for i in range(4)) for share in (own - 0.06, own, own + 0.06)]
    assert lengths[0] < 3.278 < lengths[1] < 3.75 < lengths[2]


def test_the_targets_own_layers_begin_with_their_recipes_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.61 tokens a step, of 6. The model cannot be reached, so the plan follows the recipe."""

    def fetch(name: str, *, revision: str | None = None) -> str:
        raise CheckpointError(f"{name} cannot be fetched")

    monkeypatch.setattr(hub, "fetch", fetch)
    plan = resolve("zai-org/GLM-5.2-FP8", {"gpus": "8x B300"})
    assert (plan.value("method"), plan.value("drafter")) == ("mtp", None)
    own = expected_acceptance(plan.settings)
    assert own is not None and sum(own**i for i in range(6)) == pytest.approx(3.61, abs=0.02)
    asked = resolve("zai-org/GLM-5.2-FP8", {"gpus": "8x B300", "method": "mtp"})
    assert expected_acceptance(asked.settings) is None


def test_what_a_recipe_did_not_name_was_not_measured() -> None:
    assert expected_acceptance(resolve(None, {"drafter": "none"}).settings) is None
    named = resolve(None, {}).value("drafter")
    assert expected_acceptance(resolve(None, {"drafter": named}).settings) is None
