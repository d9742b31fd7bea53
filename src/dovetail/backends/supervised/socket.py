"""The Unix socket on which an engine listens that Dovetail started: no other user can reach or replace it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from dovetail.errors import PlanError

#: The most bytes of a socket's path: 107 on Linux, 103 on macOS (<sys/un.h>).
_PATH_LENGTH = 103
#: Where the socket's folder may be if $TMPDIR is not suitable. A pod's /tmp is often open to all and not sticky.
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
#: The socket's name in its folder. llama.cpp takes a path for a socket if it ends so.
_NAME = "e.sock"


class Socket:
    """The `path` of the Unix socket on which every child listens, in a folder of its own.

    Only the user can enter the folder, and no other user can replace it. So both ends of the socket are always the
    user's own processes.
    """

    def __init__(self) -> None:
        """Choose a folder that is writable, safe, and short enough. Raises `PlanError` if there is none."""
        name = f"dovetail-{secrets.token_hex(4)}"
        folders = (tempfile.gettempdir(), *FOLDERS)
        paths = {os.path.join(folder, name, _NAME): folder for folder in folders}
        unfit = {path: _unfit(folder, path) for path, folder in paths.items()}
        path = next((path for path, why in unfit.items() if why is None), None)
        if path is None:
            raise PlanError(f"{folders[0]} is {next(iter(unfit.values()))}: set TMPDIR to another folder")
        self.path: str = path

    def open(self) -> None:
        """Create the folder if it is missing, and remove an old socket from it. Raises `PlanError`.

        A socket outlives the process that listened on it, and a folder in /tmp may be cleaned away.
        """
        folder = os.path.dirname(self.path)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            status = os.lstat(folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PlanError(f"{folder} was created by another user; set TMPDIR to another folder")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        except OSError as error:
            raise PlanError(f"{folder} cannot be created: {error.strerror}; set TMPDIR to another folder") from error

    def close(self) -> None:
        """Remove the socket and its folder."""
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))


def _unfit(folder: str, path: str) -> str | None:
    """Why a socket cannot be at `path`, two levels below `folder`; None if it can."""
    if len(os.fsencode(path)) > _PATH_LENGTH:
        return "too long for the path of a socket"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return "not a writable folder"
    if _replaceable(Path(folder)):
        return "open to other users, who could replace the socket"
    return None


def _replaceable(folder: Path) -> bool:
    """Whether another user may rename the folder or its content: a folder of its path is writable and not sticky."""
    try:
        folder = folder.resolve()
        modes = [each.stat().st_mode for each in (folder, *folder.parents)]
    except OSError:  # the folder was just removed
        return True
    return any(mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX for mode in modes)
