"""What the gate inside vLLM is told: `--additional-config '{"dovetail": {…}}'`; it goes wherever vLLM's config goes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError

#: The member of vLLM's additional config that is Dovetail's.
MEMBER = "dovetail"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named and meant as the plan's settings are; how much is drafted at most is vLLM's num_speculative_tokens."""

    gate: Literal["measured", "off"] = "measured"
    speculate_below_context: Annotated[int, Meta(ge=1)] | None = None
    speculate_up_to_batch: Annotated[int, Meta(ge=1)] | None = None


def read(additional_config: Any) -> Settings:
    """Raises `PlanError`, which names the setting."""
    found = additional_config.get(MEMBER, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(found, Settings)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"--additional-config: {MEMBER}: {error}; it may hold {', '.join(Settings.__struct_fields__)}"
        ) from None
