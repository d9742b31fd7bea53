"""`dovetail version`."""

from __future__ import annotations

import argparse

from dovetail import __version__


def run(arguments: argparse.Namespace) -> None:
    print(__version__)
