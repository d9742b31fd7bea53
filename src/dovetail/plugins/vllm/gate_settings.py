"""The settings of the gate inside vLLM: `--additional-config '{"dovetail": {…}}'`.

vLLM copies its config to every rank on every node, so the settings get there too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError

#: Dovetail's key in vLLM's additional config.
MEMBER = "dovetail"


class GateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """They have the names and meanings of the plan's settings. vLLM's num_speculative_tokens is the most drafts."""

    gate: Literal["measured", "off"] = "measured"
    speculate_below_context: Annotated[int, Meta(ge=1)] | None = None
    speculate_up_to_batch: Annotated[int, Meta(ge=1)] | None = None


def read(additional_config: Any) -> GateSettings:
    """The settings in `additional_config`. Raises `PlanError`, which names the bad setting."""
    member = additional_config.get(MEMBER, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(member, GateSettings)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"--additional-config: {MEMBER}: {error}; it may hold {', '.join(GateSettings.__struct_fields__)}"
        ) from None
