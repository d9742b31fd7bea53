"""How many tokens to draft now, if any: where drafting does not pay it is off (law 13, *never slower*).

`best` is the decision, a pure function: given how likely each sequence's drafts are to stand and what steps take, the
numbers of drafts that make the most tokens per second. `Gate` is what surrounds it: acceptance as it is seen, a
`CostTable` that learns, and calm. Nothing here knows tokens or tensors, so any scheduler can ask.
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
