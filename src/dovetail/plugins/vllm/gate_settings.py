"""The settings of the gate inside vLLM: `--additional-config '{"dovetail": {…}}'`; nothing here imports vLLM.

vLLM copies its config to every rank on every node, so the settings get there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError
from dovetail.gate import CostModel, Gate, Limits, UniformGate

#: Dovetail's key in vLLM's additional config.
MEMBER = "dovetail"
NO_LIMITS = Limits()


class GateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """They have the names and meanings of the plan's settings. vLLM's num_speculative_tokens is the most drafts.

    `draft_tokens`: the drafter's own number, which the gate begins with; None is the most. `acceptance`: how likely a
    draft is to be accepted when those before it were, as far as the drafter's recipe has measured it.
    """

    gate: Literal["measured", "off"] = "measured"
    speculate_below_context: Annotated[int, Meta(ge=1)] | None = None
    speculate_up_to_batch: Annotated[int, Meta(ge=1)] | None = None
    draft_tokens: Annotated[int, Meta(ge=1)] | None = None
    acceptance: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.speculate_below_context, self.speculate_up_to_batch)

    def gate_for(
        self, costs: CostModel | None, most: int, numbers: Callable[[int], Collection[int]] | None = None
    ) -> Gate:
        """A gate that allows up to `most` drafts, the same for all sequences. Without `costs` only limits apply.

        `numbers`: for a number of sequences, the numbers that may be chosen.
        """
        if costs is None:
            return Gate(None, self.limits, most)
        acceptance = () if self.acceptance is None else (self.acceptance,)
        return UniformGate(costs, self.limits, most, default=self.draft_tokens, acceptance=acceptance, numbers=numbers)


def read(additional_config: Any) -> GateSettings:
    """The settings in `additional_config`. Raises `PlanError`, which names the bad setting."""
    member = additional_config.get(MEMBER, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(member, GateSettings)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"--additional-config: {MEMBER}: {error}; it may hold {', '.join(GateSettings.__struct_fields__)}"
        ) from None
