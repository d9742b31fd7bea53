"""Cost files: a cost table as JSON, with what was learned while serving, for the next start.

The file's name is a digest of everything that the table depends on: checkpoints, types, sizes and machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from dovetail.gate.costs import CostTable

_log = logging.getLogger(__name__)

# A table from a file counts as learned from at most this many steps, because the machine may have changed.
_REMEMBERED = 8.0


def name(*dependencies: object) -> str:
    """The name of the file for a table with these dependencies (by their `repr`) on this machine."""
    whole = (dependencies, platform.machine(), _processor(), os.cpu_count())
    return hashlib.blake2b(repr(whole).encode(), digest_size=16).hexdigest() + ".json"


def read(path: Path, batch: int, drafts: int) -> CostTable | None:
    """The table in the file `path`. None, and a warning, where the file is damaged or of other sizes."""
    try:
        table = msgspec.json.decode(path.read_bytes(), type=CostTable)
        if (table.batches[-1], table.drafts) != (batch, drafts):
            raise ValueError(f"it goes up to batch {table.batches[-1]} and {table.drafts} drafts")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("step times are measured again: the cost file %s cannot be used (%s)", path, error)
        return None
    table.forget(_REMEMBERED)
    return table


def write(path: Path, table: CostTable) -> None:
    """Write `table` to the file `path`. A warning where that fails: the next start measures again."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(table))
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
