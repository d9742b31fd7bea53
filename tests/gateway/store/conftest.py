"""Stores of each kind: SQLite always, the others where a variable names their server (`servers.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.gateway.store.interface import Store
from tests.gateway.store.servers import Server, emptied, running


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with running("redis") as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    with running("postgresql") as server:
        yield server


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Server:
    """A server that tests share, so they must leave it running."""
    server: Server = request.getfixturevalue(f"{kind}_server")
    return server


@pytest.fixture
def shared(server: Server) -> Iterator[Store]:
    """An empty store of the server."""
    store = server.store()
    emptied(server, store)
    yield store
    store.close()


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Path | Store:
    """Where entries are kept: a new file, or an empty store of a server."""
    if kind == "sqlite":
        return tmp_path / "store.db"
    store: Store = request.getfixturevalue("shared")
    return store
