"""How vLLM is started for a plan: its words, its environment, the port that it answers us on, and its log."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
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
_HOST = "127.0.0.1"
_LISTENS = "0A"  # <net/tcp_states.h>
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
    url: str
    key: str
    notes: tuple[str, ...]


def launch(plan: Plan, program: str, version: str, port: int) -> Launch:
    """`program serve …` for the plan. Raises `PlanError` for a version older than those known."""
    settings = {name: setting for name, setting in plan.settings.items() if name not in _OURS}
    command = vllm.command(settings, version)
    key = secrets.token_urlsafe(32)
    fronted = (*_FRONTED, _DRAFTING) if "--speculative-config" in command.argv else _FRONTED
    return Launch(
        # Ours last: of an option that is said twice vLLM takes the last.
        arguments=(program, *command.argv[1:], *fronted, "--host", _HOST, "--port", str(port)),
        environment={**os.environ, **command.variables, "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key},
        url=f"http://{_HOST}:{port}",
        key=key,
        notes=command.notes,
    )


class Port:
    """A free port of the loopback, kept for the child and for those that come after it.

    It is bound here as long as this is open, and never listens, so nobody is given it by chance; whoever binds it on
    purpose, with SO_REUSEADDR as vLLM does, may listen on it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((_HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def strangers(self) -> set[int]:
        """Other users' ids, but root's, who listen on it; on Linux alone, where the system says."""
        found: set[int] = set()
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as file:
                # slot address:port remote state queues timer retransmits uid …, proc(5)
                rows = [line.split() for line in file.readlines()[1:]]
                found |= {int(row[7]) for row in rows if row[1].endswith(f":{self.number:04X}") and row[3] == _LISTENS}
        return found - {0, os.geteuid()}

    def close(self) -> None:
        self._socket.close()


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
