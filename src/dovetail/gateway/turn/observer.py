"""What watches a request for an answer from outside: metrics, recordings and the limits of keys do."""

from __future__ import annotations

from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.turn import Turn


class Observer:
    """Watches one request, in the order of the methods. It overrides those it needs. No method waits for anything."""

    def prepared(self, turn: Turn) -> None:
        """The request has become `turn`."""

    def admitted(self) -> None:
        """The engine has a place for the turn."""

    def step(self, step: Step) -> None:
        """The engine has made a step. Runs for every token, before the client gets the step."""

    def ended(self, error: BaseException | None) -> None:
        """The request has ended: with `error`, or with its whole response."""
