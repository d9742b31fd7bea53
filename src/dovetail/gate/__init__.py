"""The gate: how many tokens to draft in the next step. Where drafting does not pay, it is off (law 13, never slower).

`Forecast` finds the draft counts that make the most tokens per second, from the probability that drafts are accepted
and from a `CostModel`. `decision.decide` decides when to change the counts and when to try others; both are pure.
`Gate` keeps what they need between steps: acceptance, costs, the last state. Nothing here knows tokens or tensors, so
any scheduler can use it.
"""

from dovetail.gate.acceptance import Acceptance, Track, per_draft
from dovetail.gate.costs import CONTEXTS, CostModel, Rounds
from dovetail.gate.decision import DECIDE_EVERY, Decision, Limits, Reason
from dovetail.gate.forecast import Forecast
from dovetail.gate.gate import Drafted, Gate, UniformGate

__all__ = [
    "CONTEXTS",
    "DECIDE_EVERY",
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
