"""Real Redis and PostgreSQL servers for the tests of stores: started here, stopped, paused and filled by them.

    DOVETAIL_REDIS=/usr/bin/redis-server DOVETAIL_POSTGRESQL=/usr/lib/postgresql/15/bin make test-stores

DOVETAIL_REDIS may name Valkey's server too. Without the variable, the tests of that server are skipped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dovetail.gateway.store.interface import Store, StoreError
from dovetail.gateway.store.remote import Remote

#: Servers that are no root's, as PostgreSQL demands.
_USER = "postgres" if os.geteuid() == 0 else None
TIMEOUT_S = 0.5


class Server:
    """One server. `kind`: "redis" or "postgresql"."""

    def __init__(self, kind: str, folder: Path, *options: str) -> None:
        self.kind = kind
        self.folder = folder
        self._options = options
        self._program = program_of(kind)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.kind == "redis" else self._database

    @property
    def _database(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def store(self, timeout: float = TIMEOUT_S) -> Remote:
        store = opened(self.url, timeout)
        store.check()
        return store

    def start(self) -> None:
        data = self.folder / "data"
        if self.kind == "redis":
            own = ("--port", f"{self.port}", "--bind", "127.0.0.1", "--save", "", "--dir", f"{self.folder}")
            command = [self._program, *own, *self._options]
        else:
            if not data.exists():
                self.folder.chmod(0o755)
                data.mkdir()
                if _USER is not None:
                    os.chown(data, *_ids())
                made = ("-D", data, "-U", "postgres", "-A", "trust", "-N", "--wal-segsize=1")
                subprocess.run([f"{self._program}/initdb", *made], check=True, user=_USER, stdout=-3, cwd="/")
            listen = ("-p", f"{self.port}", "-k", "", "-h", "127.0.0.1", "-F")
            command = [f"{self._program}/postgres", "-D", f"{data}", *listen, *self._options]
        user = _USER if self.kind == "postgresql" else None
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=user, cwd="/", start_new_session=True
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.closing(opened(self.url, 5)) as store, contextlib.suppress(StoreError):
                return store.check()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the server and to all of its processes, which are a session of their own."""
        assert self._process is not None
        for member in _session(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)

    def kill(self) -> None:
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _session(leader: int) -> list[int]:
    """The processes of the session that `leader` has begun."""
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                members.append(int(entry.name))
    return members


def _ids() -> tuple[int, int]:
    import pwd

    user = pwd.getpwnam(f"{_USER}")
    return user.pw_uid, user.pw_gid


def program_of(kind: str) -> str:
    """The program or the folder of programs of a kind of server. Skips the test if no variable names it."""
    variable = f"DOVETAIL_{kind.upper()}"
    if variable not in os.environ:
        pytest.skip(f"{variable} does not name a server")
    return os.environ[variable]


def opened(url: str, timeout: float = TIMEOUT_S) -> Remote:
    from dovetail.gateway.store.opened import opened_store

    return opened_store(url, timeout)


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Server]:
    """A server with a folder of its own: PostgreSQL's user may not enter pytest's."""
    with TemporaryDirectory() as folder:
        server = Server(kind, Path(folder), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def emptied(server: Server, store: Store) -> None:
    """Delete everything that is in the store of `server`."""
    assert isinstance(store, Remote)

    async def empty() -> None:
        if server.kind == "redis":
            await store._client.flushall()  # type: ignore[attr-defined]
        else:

            async def truncate(connection: object) -> None:
                await connection.execute(  # type: ignore[attr-defined]
                    "TRUNCATE dovetail_responses, dovetail_answers, dovetail_shares, dovetail_use"
                )

            await store._with(truncate)  # type: ignore[attr-defined]

    store.run(empty)
