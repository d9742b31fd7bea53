"""What the endpoints of one server share."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.gateway.limits.bodies import Bodies
from dovetail.gateway.limits.draining import Draining
from dovetail.gateway.limits.queue import Admission
from dovetail.gateway.observe.capture import Captures
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.settings import Settings
from dovetail.gateway.turn.runner import TurnRunner


class Serving(NamedTuple):
    """`captures` is None where no request is recorded."""

    runner: TurnRunner
    settings: Settings
    metrics: Metrics
    bodies: Bodies
    draining: Draining
    admission: Admission
    captures: Captures | None
