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
from dovetail.gateway.store.opened import opened_store
from dovetail.gateway.store.remote import Remote

#: Servers that are no root's, as PostgreSQL demands.
_USER = "postgres" if os.geteuid() == 0 else None
#: Seconds that a request waits in tests of stores that are down.
TIMEOUT_S = 0.5
#: The most that a file of PostgreSQL may have, in blocks of 512 bytes: 8 MB. It says what it says of a full disk.
_FILE_BLOCKS = 16_384


class Server:
    """One server. `kind`: "redis" or "postgresql"."""

    def __init__(self, kind: str, folder: Path, *options: str, url: str = "", password: str | None = None) -> None:
        self.kind = kind
        self._url = url
        self._password = password
        self.folder = folder
        self._options = options
        self._program = program_of(kind)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        plain = "redis://127.0.0.1:{}", "postgresql://postgres@127.0.0.1:{}/postgres?sslmode=disable"
        return (self._url or plain[self.kind == "postgresql"]).format(self.port)

    def store(self, timeout: float = 20.0) -> Remote:
        store = opened_store(self.url, timeout, self._password)
        store.check()
        return store

    def start(self) -> None:
        data = self.folder / "data"
        if self.kind == "redis":
            port = () if self._url else ("--port", f"{self.port}")
            own = ("--bind", "127.0.0.1", "--save", "", "--dir", f"{self.folder}")
            command = [self._program, *port, *own, *(option.format(self.port) for option in self._options)]
        else:
            if not data.exists():
                self.folder.chmod(0o755)
                data.mkdir()
                if _USER is not None:
                    os.chown(data, *_ids())
                made = ("-D", data, "-U", "postgres", "-A", "trust", "-N", "--wal-segsize=1")
                subprocess.run([f"{self._program}/initdb", *made], check=True, user=_USER, stdout=-3, cwd="/")
            listen = ("-p", f"{self.port}", "-k", "", "-h", "127.0.0.1", "-F")
            limited = ("/bin/sh", "-c", f'ulimit -f {_FILE_BLOCKS}; exec "$@"', "sh")
            command = [*limited, f"{self._program}/postgres", "-D", f"{data}", *listen, *self._options]
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
            with (
                contextlib.closing(opened_store(self.url, 5, self._password)) as store,
                contextlib.suppress(StoreError),
            ):
                return store.check()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the server and to all of its processes."""
        assert self._process is not None
        for member in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)

    def fill(self) -> None:
        """Let Redis take 4 MB of memory at most. PostgreSQL's files have their limit."""
        if self.kind == "redis":
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                connection.sendall(b"CONFIG SET maxmemory 4mb\r\n")
                assert connection.recv(100) == b"+OK\r\n"

    def kill(self) -> None:
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _children(parent: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                members.append(int(entry.name))
    return members


def _ids() -> tuple[int, int]:
    import pwd

    user = pwd.getpwnam(f"{_USER}")
    return user.pw_uid, user.pw_gid


def program_of(kind: str) -> str:
    """The program or the folder of programs of a kind of server. Skips the test if no variable names it."""
    variable = f"DOVETAIL_{kind.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} does not name a server")
    return os.environ[variable]


@contextlib.contextmanager
def running(kind: str, *options: str, url: str = "", password: str | None = None) -> Iterator[Server]:
    """A server with a folder of its own: PostgreSQL's user may not enter pytest's."""
    with TemporaryDirectory() as folder:
        server = Server(kind, Path(folder), *options, url=url, password=password)
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
