"""The commands' fixtures: servers are started by `dovetail serve`."""

from __future__ import annotations

from tests.cli.conftest import cache, dovetail, no_gpus, pair, pipe

__all__ = ["cache", "dovetail", "no_gpus", "pair", "pipe"]
