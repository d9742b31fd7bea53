"""How vLLM is started for a plan: its words, its environment, the socket that it answers us on, and its log."""

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

#: Settings that the gateway sees to, in front of vLLM, and those that are about the child itself.
_OURS = (
    *("gpus", "host", "port", "api_key_file", "engine_api_key_file"),
    *("format", "strict", "no_repair", "vllm", "engine_log"),
)
#: Its name in messages and in HTTP's Host; where it listens is a `Socket`'s path.
URL = "http://vllm"
#: Bytes of a socket's path: Linux takes 107, macOS 103, <sys/un.h>.
_LONGEST = 103
#: Where its folder may be when it cannot be in $TMPDIR. A pod's /tmp is often open to all, and not sticky.
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
#: What answering us takes beside the plan.
_FRONTED = (
    "--disable-uvicorn-access-log",  # we ask for its health and its counters all the time
    "--enable-prompt-tokens-details",  # how much of a prompt was cached
)
#: What was drafted for each request. Where nothing drafts, vLLM refuses to be asked.
_DRAFTING = "--per-request-spec-decode-metrics=summary"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` follow the program's name. `environment` holds the `key`, which nobody else can read there.

    `notes` say what of the plan vLLM has no word for.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    key: str
    notes: tuple[str, ...]


def launch(plan: Plan, program: str, version: str, path: str) -> Launch:
    """`program serve …` for the plan, on the Unix socket `path`. Raises `PlanError` for a version older than those
    known."""
    settings = {name: setting for name, setting in plan.settings.items() if name not in _OURS}
    command = vllm.command(settings, version)
    key = secrets.token_urlsafe(32)
    fronted = (*_FRONTED, _DRAFTING) if "--speculative-config" in command.argv else _FRONTED
    return Launch(
        # Ours last: of an option that is said twice vLLM takes the last.
        arguments=(program, *command.argv[1:], *fronted, "--uds", path),
        environment={**os.environ, **command.variables, "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key},
        key=key,
        notes=command.notes,
    )


class Socket:
    """The `path` of a Unix socket for the child and for those that come after it, in a folder of its own.

    Only its user can enter the folder, and nobody else can put another in its place, so whatever listens there is the
    user's, at any time, and so is who asks it.
    """

    def __init__(self) -> None:
        """Raises `PlanError` where there is no folder for it that can be written to, is safe, and has a short name."""
        name = f"dovetail-{secrets.token_hex(4)}"
        folders = (tempfile.gettempdir(), *FOLDERS)
        paths = {os.path.join(folder, name, "vllm"): folder for folder in folders}
        unfit = {path: _unfit(folder, path) for path, folder in paths.items()}
        path = next((path for path, why in unfit.items() if why is None), None)
        if path is None:
            raise PlanError(f"{folders[0]} is {next(iter(unfit.values()))}: TMPDIR names another folder")
        self.path: str = path

    def open(self) -> None:
        """Make the folder, and room in it for the next that listens. Raises `PlanError`.

        A socket outlives whoever listened on it, and a folder need not: things below /tmp are cleaned away.
        """
        folder = os.path.dirname(self.path)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PlanError(f"{folder} was made by somebody else; TMPDIR names another place")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        except OSError as error:
            raise PlanError(f"{folder} cannot be made: {error.strerror}; TMPDIR names another place") from error

    def close(self) -> None:
        """Remove the folder, if there is one."""
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))


def _unfit(folder: str, path: str) -> str | None:
    """Why a socket cannot be at `path`, two levels below `folder`; None where it can."""
    if len(os.fsencode(path)) > _LONGEST:
        return "too long for the name of a socket"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return "no folder that can be written to"
    if _replaceable(Path(folder)):
        return "open to others, who could replace what is in it"
    return None


def _replaceable(folder: Path) -> bool:
    """Whether others may rename what is in it, or it itself: there, "sticky" says that they may not."""
    try:
        folder = folder.resolve()
        modes = [each.stat().st_mode for each in (folder, *folder.parents)]
    except OSError:  # it has just gone
        return True
    return any(mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX for mode in modes)


def log_path(said: str | None, port: int) -> Path:
    """Where the child's output goes: as `said`, else one file for each port that is served.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    if said is not None:
        return Path(said)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = (state if state.is_absolute() else Path.home() / ".local" / "state") / "dovetail"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder / f"vllm-{port}.log"
    except (OSError, RuntimeError, ValueError):  # no home at all; a NUL
        pass
    return Path(tempfile.mkdtemp(prefix="dovetail-")) / f"vllm-{port}.log"


def open_log(path: Path) -> BinaryIO:
    """The file, empty; what the last run wrote is kept beside it as ``.1``. Raises `PlanError`.

    For its owner's eyes only: a log may hold what people asked.
    """
    try:
        if path.is_file() and not path.is_symlink():
            os.replace(path, f"{path}.1")
        # Neither a link that others may have laid out, but for the system's own as /dev/stdout is, nor a FIFO that
        # nobody reads: waiting for a reader would be waiting for ever.
        links = 0 if path.parent == Path("/dev") else os.O_NOFOLLOW
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | links
        return open(os.open(path, flags, 0o600), "ab")
    except OSError as error:
        raise PlanError(f"the engine's log {path} cannot be written: {error.strerror}; --engine-log FILE") from error
