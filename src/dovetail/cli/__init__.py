"""The `dovetail` command, and the only place where the parts are put together."""

from dovetail.cli.main import main

__all__ = ["main"]
