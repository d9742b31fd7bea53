"""Cost files: a cost model as JSON, written when an engine ends and read by the next start.

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

# The version of the file. It changes when the meaning of a model changes.
_VERSION = 3, PARTS
# The share by which each part of a step may have changed since the file was written, for example on another machine.
_CHANGED = 0.1


def name(*dependencies: object) -> str:
    """The file's name for a model on this machine. `dependencies`: values whose `repr` differs when the model does."""
    whole = (_VERSION, dependencies, platform.machine(), _processor(), os.cpu_count())
    return hashlib.blake2b(repr(whole).encode(), digest_size=16).hexdigest() + ".json"


def read(path: Path) -> CostModel | None:
    """The model in the file `path`, None if there is no file. A damaged file gives None and a warning."""
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
    """Write `costs` to the file `path`. A failure gives a warning, and the next start measures again."""
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
