"""Writes a plan as the command of another engine, or as a manifest for a cluster."""

from dovetail.plan.emit.command import Command
from dovetail.plan.emit.text import FORMS, emitted

__all__ = ["FORMS", "Command", "emitted"]
