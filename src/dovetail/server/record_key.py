"""The key that signs records of answers (`gateway.records`): of a file, or made at the first start and kept.

It is kept so that records hold over a restart. Servers that share their clients need one file.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from dovetail.errors import PlanError
from dovetail.plan import Plan

_LOG = logging.getLogger("dovetail.serve")
_BYTES = 32  # of a key that is made here, and the fewest of one in a file
_MOST_BYTES = 4096


def record_key(plan: Plan) -> bytes:
    """The key for the plan's server. Raises `PlanError` if the plan names a file without a key."""
    path = plan.value("record_key_file")
    if path is None:
        return _kept_key(_folder())
    try:
        key = _content(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        raise PlanError(f"record_key_file {path} cannot be read: {error.strerror}") from error
    if not _BYTES <= len(key) <= _MOST_BYTES:
        raise PlanError(f"record_key_file {path} must hold {_BYTES} to {_MOST_BYTES} bytes, which nobody can guess")
    return key


def _kept_key(folder: Path | None) -> bytes:
    """The key of this user's servers. One that cannot be kept, or that others could know, is made for this run."""
    new = secrets.token_bytes(_BYTES)
    if folder is None:
        return new
    path = folder / "record.key"
    try:
        _create(path, new)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        key = _content(descriptor)
    except OSError as error:
        _LOG.warning("records of answers end with this server: their key %s cannot be kept (%s)", path, error.strerror)
        return new
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or len(key) != _BYTES:
        _LOG.warning(
            "records of answers end with this server: their key %s must be yours alone (mode 600) and have %d bytes; "
            "remove it, and the next start makes another",
            path,
            _BYTES,
        )
        return new
    return key


def _create(path: Path, key: bytes) -> None:
    """Write `key` to `path`, whole or not at all, unless the file exists: another server may start at the same time."""
    if path.exists():
        return
    written = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(key)
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        written.unlink()


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read(_MOST_BYTES + 1)


def _folder() -> Path | None:
    """The folder for this user's keys; None if there is none.

    The place follows https://specifications.freedesktop.org/basedir-spec/latest/
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    with suppress(OSError, RuntimeError, ValueError):  # there is no home, or its name contains a NUL
        folder = (config if config.is_absolute() else Path.home() / ".config") / "dovetail"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    return None
