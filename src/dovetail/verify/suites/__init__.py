"""The suites by name."""

from dovetail.verify.suites.base import Suite
from dovetail.verify.suites.calls import Calls
from dovetail.verify.suites.injection import Injection
from dovetail.verify.suites.long import Long
from dovetail.verify.suites.protocol import Protocol
from dovetail.verify.suites.schema import Schema
from dovetail.verify.suites.silent import Silent
from dovetail.verify.suites.speculation import Speculation

SUITES: dict[str, type[Suite]] = {
    suite.name: suite for suite in (Protocol, Schema, Injection, Calls, Speculation, Silent, Long)
}

__all__ = ["SUITES", "Calls", "Injection", "Long", "Protocol", "Schema", "Silent", "Speculation", "Suite"]
