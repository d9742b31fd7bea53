"""Writes a plan as the command of another engine, or as values for the chart."""

from dovetail.plan.emit.command import Command
from dovetail.plan.emit.text import FORMS, emitted

__all__ = ["FORMS", "Command", "emitted"]
