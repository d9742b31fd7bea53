"""A port in use is found before anything loads, whatever address the other server has."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dovetail.cli.terminal import curl
from dovetail.errors import PlanError
from dovetail.plan.resolve import resolve
from dovetail.server.api_keys import CLIENT_KEY, client_key
from dovetail.server.server import _answers, listen

V4, V6 = socket.AF_INET, socket.AF_INET6


def taken(family: int, host: str, *, reuse_port: bool = False) -> socket.socket:
    other = socket.socket(family)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == V6:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    other.bind((host, 0))
    other.listen()
    return other


@pytest.mark.parametrize(
    ("family", "other", "host"),
    [
        (V4, "127.0.0.1", "127.0.0.1"),
        (V4, "127.0.0.1", "0.0.0.0"),
        (V4, "0.0.0.0", "127.0.0.1"),
        (V4, "0.0.0.0", "0.0.0.0"),
        (V4, "127.0.0.1", "localhost"),
        (V6, "::", "127.0.0.1"),
        (V6, "::", "0.0.0.0"),
        (V6, "::1", "::"),
        (V6, "::1", "::1"),
    ],
)
@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_port_in_use_is_refused(family: int, other: str, host: str, reuse_port: bool) -> None:
    try:
        server = taken(family, other, reuse_port=reuse_port)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = server.getsockname()[1]
    with server, pytest.raises(PlanError, match=f"cannot listen on {host}:{port}: Address already in use; choose"):
        listen(host, port)
    with listen(host, port) as listener:
        assert listener.getsockname()[1] == port


def test_a_connection_detects_a_used_port_that_bind_does_not() -> None:
    with taken(V4, "127.0.0.1") as other:
        assert _answers(V4, other.getsockname())
        address = other.getsockname()
    assert not _answers(V4, address)


def test_any_free_port_will_do() -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as two:
        assert one.getsockname() != two.getsockname()


def test_the_key_of_clients_comes_from_a_file_or_from_the_environment(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("from-the-file\n")
    plain = resolve(str(pair / "target"), {})
    with_file = resolve(str(pair / "target"), {"api_key_file": str(tmp_path / "key")})
    monkeypatch.delenv(CLIENT_KEY, raising=False)
    assert (client_key(plain), client_key(with_file)) == (None, "from-the-file")
    monkeypatch.setenv(CLIENT_KEY, "from-outside")
    assert (client_key(plain), client_key(with_file)) == ("from-outside", "from-the-file")
    assert f'-H "Authorization: Bearer ${CLIENT_KEY}"' in curl(plain, key_variable=CLIENT_KEY)
    assert CLIENT_KEY not in curl(plain) + curl(with_file, key_variable=CLIENT_KEY)
    for bad in ("", "two words", "ü"):
        monkeypatch.setenv(CLIENT_KEY, bad)
        with pytest.raises(PlanError, match=f"{CLIENT_KEY} must hold one key"):
            client_key(plain)
