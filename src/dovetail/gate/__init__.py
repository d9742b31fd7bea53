"""The gate: how many tokens to draft in the next step. Where drafting does not pay, it is off (law 13, never slower).

`best` finds the draft counts that make the most tokens per second, from the probability that drafts are accepted and
from step times. `decision.decide` decides when to change the counts and when to try others; both are pure functions.
`Gate` keeps what they need between steps: acceptance, step times, the last state. Nothing here knows tokens or tensors,
so any scheduler can use it.
"""

from dovetail.gate.acceptance import Acceptance, Track
from dovetail.gate.costs import CONTEXTS, CostTable, Point
from dovetail.gate.decision import DECIDE_EVERY, Decision, Limits, Reason
from dovetail.gate.forecast import Forecast, best
from dovetail.gate.gate import Drafted, Gate
from dovetail.gate.uniform import UniformGate

__all__ = [
    "CONTEXTS",
    "DECIDE_EVERY",
    "Acceptance",
    "CostTable",
    "Decision",
    "Drafted",
    "Forecast",
    "Gate",
    "Limits",
    "Point",
    "Reason",
    "Track",
    "UniformGate",
    "best",
]
