"""The request's `dovetail` field in the APIs where it has fields beyond those of `Extension`."""

from __future__ import annotations

from typing import Literal

from dovetail.gateway.turn.turn_request import Extension


class MeasuredExtension(Extension, frozen=True):
    """`metrics`: which figures about speculation the response has, see `speculation_metrics`."""

    metrics: Literal["summary", "detailed"] | None = None


class RawExtension(MeasuredExtension, frozen=True):
    """`control_tokens`: see `RawPrompt.controls`."""

    control_tokens: bool | None = None
