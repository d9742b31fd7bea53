"""The gate for an engine that drafts one number for all sequences."""

from __future__ import annotations

from dovetail.gate.decision import Policy, one_count
from dovetail.gate.gate import Gate


class UniformGate(Gate):
    """A `Gate` that allows the same number of draft tokens for all sequences that may draft at all."""

    policy: Policy = staticmethod(one_count)
