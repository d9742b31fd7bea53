"""A listening Unix socket: who may connect is decided by the mode of its file."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.errors import PlanError

#: Only the user that the server runs as may connect.
DEFAULT_MODE = 0o600


@contextlib.contextmanager
def listening(path: str, mode: int, backlog: int) -> Iterator[socket.socket]:
    """A socket that listens at `path` with the permissions `mode`; its file is removed at the end.

    The file of a server that has ended is replaced. Raises `PlanError` if another server answers there, or another
    kind of file is there.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        _remove_stale(path)
        earlier = os.umask(0o777 & ~mode)  # so that nobody else can connect even for a moment
        try:
            listener.bind(path)
            os.chmod(path, mode)
            listener.listen(backlog)
        except OSError as error:
            raise _cannot(path, error.strerror or str(error)) from error
        finally:
            os.umask(earlier)
        made = os.stat(path)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                now = os.stat(path)
                if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):  # not another server's by now
                    os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that has ended. Raises `PlanError` for anything else at `path`."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error
    if not stat.S_ISSOCK(kind):
        raise _cannot(path, "it is a file that is no socket, and is not removed")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise _cannot(path, error.strerror or str(error)) from error
        else:
            raise _cannot(path, "another server answers there")


def _cannot(path: str, reason: str) -> PlanError:
    return PlanError(f"cannot listen on {path}: {reason}; choose another path with --uds")
