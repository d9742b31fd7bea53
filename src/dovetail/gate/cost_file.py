"""Tables in files: what steps were measured to take, and what was learned of them while serving.

A file's name says what its table depends on: the checkpoints, how they are held, the sizes, and the machine.
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

# Of the steps a kept table was told of, so many count: today may be another day.
_REMEMBERED = 8.0


def name(*of: object) -> str:
    """The file's name for a table that depends on `of`, and on the machine."""
    whole = (of, platform.machine(), _processor(), os.cpu_count())
    return hashlib.blake2b(repr(whole).encode(), digest_size=16).hexdigest() + ".json"


def read(path: Path, batch: int, drafts: int) -> CostTable | None:
    """The table up to these sizes that is kept at `path`; None where there is none, or something else."""
    try:
        table = msgspec.json.decode(path.read_bytes(), type=CostTable)
        if (table.batches[-1], table.drafts) != (batch, drafts):
            raise ValueError(f"it goes up to batch {table.batches[-1]} and {table.drafts} drafts")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _log.warning("what steps take is measured again: %s cannot be used (%s)", path, error)
        return None
    table.forget(_REMEMBERED)
    return table


def write(path: Path, table: CostTable) -> None:
    """Keep `table`; where that cannot be, it will be measured again."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(table))
        new.replace(path)
    except OSError as error:
        _log.warning("what steps take is not kept in %s: %s", path, error)
        with suppress(OSError):
            new.unlink()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()
