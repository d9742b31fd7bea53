"""The gate: how many tokens to draft in the next step. It turns drafting off where it does not pay (law 13).

`Forecast` finds the draft counts that make the most tokens per second, from the probability that drafts are accepted
and from a `CostModel`. `decision.decide` decides when to change the counts and when to try others; both are pure.
`Gate` keeps the acceptance, the costs and the last state between steps. The gate handles neither tokens nor tensors, so
any scheduler can use it.
"""

from dovetail.gate.acceptance import LONG_MATCH, Acceptance, Track, per_draft
from dovetail.gate.costs import CONTEXTS, CostModel, Rounds
from dovetail.gate.decision import DECIDE_EVERY, Decision, Limits, Reason
from dovetail.gate.forecast import Forecast
from dovetail.gate.gate import Drafted, Gate, UniformGate

__all__ = [
    "CONTEXTS",
    "DECIDE_EVERY",
    "LONG_MATCH",
    "Acceptance",
    "CostModel",
    "Decision",
    "Drafted",
    "Forecast",
    "Gate",
    "Limits",
    "Reason",
    "Rounds",
    "Track",
    "UniformGate",
    "per_draft",
]
