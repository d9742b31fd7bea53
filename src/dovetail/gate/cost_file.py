"""Cost files: a cost model as JSON, with what was learned while serving, for the next start.

The file's name is a digest of everything that the model depends on: checkpoints, types, sizes, machine and version.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.gate.costs import PARTS, CostModel

_log = logging.getLogger(__name__)

# The version of the file, which changes when a model means something else.
_VERSION = 2, PARTS
# By how much each part of a step may have changed since, because the machine may be another.
_CHANGED = 0.1


def name(*dependencies: object) -> str:
    """The name of the file for a model with these dependencies (by their `repr`) on this machine."""
    whole = (_VERSION, dependencies, platform.machine(), _processor(), os.cpu_count())
    return hashlib.blake2b(repr(whole).encode(), digest_size=16).hexdigest() + ".json"


def read(path: Path) -> CostModel | None:
    """The model in the file `path`. None, and a warning, where the file is damaged."""
    try:
        costs = msgspec.json.decode(path.read_bytes(), type=CostModel)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("step times are measured again: the cost file %s cannot be used (%s)", path, error)
        return None
    costs.drift(_CHANGED)
    return costs


def write(path: Path, costs: CostModel) -> None:
    """Write `costs` to the file `path`. A warning where that fails: the next start measures again."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(costs))
        new.replace(path)
    except OSError as error:
        _log.warning("the cost file %s cannot be written: %s", path, error)
        with suppress(OSError):
            new.unlink()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()
