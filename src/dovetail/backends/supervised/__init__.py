"""Engines as child processes of Dovetail, completing through `backends.remote`."""

from dovetail.backends.supervised.engine import PATIENCE_S, Downloaded, SupervisedEngine
from dovetail.backends.supervised.log_file import log_path
from dovetail.backends.supervised.program import Failure, Launch, Phase, Program, Progress
from dovetail.backends.supervised.socket import Socket

__all__ = [
    "PATIENCE_S",
    "Downloaded",
    "Failure",
    "Launch",
    "Phase",
    "Program",
    "Progress",
    "Socket",
    "SupervisedEngine",
    "log_path",
]
