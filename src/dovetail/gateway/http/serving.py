"""What the endpoints of one server share."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.gateway.http.bodies import Bodies
from dovetail.gateway.http.draining import Draining
from dovetail.gateway.recordings.capture import Captures
from dovetail.gateway.settings import Settings
from dovetail.gateway.telemetry.metrics import Metrics
from dovetail.gateway.turn.admission import Admission
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
