"""Holds requests to the sampling that the server fixes (`--fixed-sampling`): other values are refused."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.checkpoints.fixed_sampling import FixedSampling
from dovetail.errors import InvalidRequest
from dovetail.gateway.turn.turn_request import TurnRequest

_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
)


def sampling_fields(request: Any) -> dict[str, float]:
    """The sampling fields that the client set in its request, whatever the API."""
    values = {field: getattr(request, field, None) for field in _FIELDS}
    return {field: value for field, value in values.items() if value is not None}


def fixed(request: TurnRequest, allowed: FixedSampling) -> TurnRequest:
    """`request` with the server's values. Raises `InvalidRequest` that names the field for a value that is not allowed.

    A request that sets an allowed value gets it.
    """
    requested = request.sampling_fields
    for field, values in allowed.items():
        if (value := requested.get(field, values[0])) not in values:
            shown = " or ".join(f"{each:g}" for each in values)
            raise InvalidRequest(
                f"{field} must be {shown}, because this server fixes the sampling to the model's own, not {value:g}",
                param=field,
            )
    chosen = {field: requested.get(field, values[0]) for field, values in allowed.items() if field != "n"}
    top_k = int(chosen.get("top_k", 0))
    sampling = msgspec.structs.replace(request.sampling, **{**chosen, "top_k": top_k if top_k > 0 else None})
    return msgspec.structs.replace(request, sampling=sampling)
