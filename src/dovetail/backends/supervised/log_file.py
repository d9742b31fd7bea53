"""The file for the output of an engine that Dovetail started."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from dovetail.errors import PlanError


def log_path(requested: str | None, engine: str, port: int) -> Path:
    """The file for the child's output: the `requested` one, else one for `engine` and the port of the gateway.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    if requested is not None:
        return Path(requested)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = (state if state.is_absolute() else Path.home() / ".local" / "state") / "dovetail"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder / f"{engine}-{port}.log"
    except (OSError, RuntimeError, ValueError):  # no home folder; a NUL in its name
        pass
    return Path(tempfile.mkdtemp(prefix="dovetail-")) / f"{engine}-{port}.log"


def open_log(path: Path) -> BinaryIO:
    """Open an empty log file. The last run's log is renamed to ``.1``. Raises `PlanError`.

    Only the owner can read it, because a log may contain prompts.
    """
    try:
        if path.is_file() and not path.is_symlink():
            os.replace(path, f"{path}.1")
        # Another user may have placed a link, so links are refused, except in /dev (/dev/stdout is one). A FIFO
        # without a reader is refused too, because opening it would block.
        links = 0 if path.parent == Path("/dev") else os.O_NOFOLLOW
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | links
        return open(os.open(path, flags, 0o600), "ab")
    except OSError as error:
        raise PlanError(f"the engine's log {path} cannot be written: {error.strerror}; --engine-log FILE") from error
