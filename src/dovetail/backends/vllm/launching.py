"""The command line, the environment, the Unix socket and the log file with which vLLM is started for a plan."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from dovetail.errors import PlanError
from dovetail.plan import Plan
from dovetail.plan.emit import vllm
from dovetail.plan.options import BY_NAME

#: Settings that Dovetail follows itself, though vLLM has options for them.
_NOT_VLLMS = ("gpus", "host", "port", "api_key_file", "format")
#: vLLM's name in messages and in HTTP's Host header. It listens on a `Socket`.
URL = "http://vllm"
#: The most bytes of a socket's path: 107 on Linux, 103 on macOS (<sys/un.h>).
_PATH_LENGTH = 103
#: Where the socket's folder may be if $TMPDIR is not suitable. A pod's /tmp is often open to all and not sticky.
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
#: Options that Dovetail needs beside the plan's.
_ALWAYS = (
    "--disable-uvicorn-access-log",  # Dovetail asks for health and metrics every second
    "--enable-prompt-tokens-details",  # reports how much of a prompt was cached
    "--enable-scale-out",  # has the endpoint for pictures (backends/remote/vllm_pictures.py), on its socket only
)
#: Reports the draft tokens of each request. vLLM refuses the option without speculation.
_DRAFTING = "--per-request-spec-decode-metrics=summary"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start vLLM.

    `arguments`: the command line, with the program first. `environment`: contains the `key`, which other users cannot
    read there. `notes`: settings of the plan that vLLM has no option for.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    key: str
    notes: tuple[str, ...]


def launch(plan: Plan, program: str, version: str, path: str, markers: tuple[str, str] | None = None) -> Launch:
    """`program serve …` for the plan, on the Unix socket `path`. Raises `PlanError` if the version is too old.

    `markers`: see `vllm.command`.
    """
    settings = {name: setting for name, setting in plan.settings.items() if _is_vllms(name)}
    command = vllm.command(settings, version, markers)
    key = secrets.token_urlsafe(32)
    added = (*_ALWAYS, _DRAFTING) if "--speculative-config" in command.argv else _ALWAYS
    return Launch(
        # Dovetail's own options last: vLLM takes the last of two equal options.
        arguments=(program, *command.argv[1:], *added, "--uds", path),
        environment={**os.environ, **command.variables, "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key},
        key=key,
        notes=command.notes,
    )


def _is_vllms(name: str) -> bool:
    """Whether a setting is passed to vLLM, rather than followed by the gateway in front of it."""
    option = BY_NAME.get(name)
    return name not in _NOT_VLLMS and (option is None or not option.gateway or "vllm" in option.engine_names)


class Socket:
    """The `path` of the Unix socket on which every child listens, in a folder of its own.

    Only the user can enter the folder, and no other user can replace it. So both ends of the socket are always the
    user's own processes.
    """

    def __init__(self) -> None:
        """Choose a folder that is writable, safe, and short enough. Raises `PlanError` if there is none."""
        name = f"dovetail-{secrets.token_hex(4)}"
        folders = (tempfile.gettempdir(), *FOLDERS)
        paths = {os.path.join(folder, name, "vllm"): folder for folder in folders}
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


def log_path(requested: str | None, port: int) -> Path:
    """The file for the child's output: the `requested` one, else one per port of the gateway.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    if requested is not None:
        return Path(requested)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = (state if state.is_absolute() else Path.home() / ".local" / "state") / "dovetail"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder / f"vllm-{port}.log"
    except (OSError, RuntimeError, ValueError):  # no home folder; a NUL in its name
        pass
    return Path(tempfile.mkdtemp(prefix="dovetail-")) / f"vllm-{port}.log"


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
