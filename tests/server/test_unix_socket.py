"""A server on a Unix socket: requests, permissions, and paths that cannot be used."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from dovetail.cli.terminal import address_of, curl
from dovetail.errors import PlanError
from dovetail.plan import Plan, resolve
from dovetail.server.server import listening
from dovetail.server.unix_socket import DEFAULT_MODE
from dovetail.server.unix_socket import listening as listening_at
from tests.server.waiting import until


def plan(pair: Path, **values: object) -> Plan:
    return resolve(str(pair / "target"), values)


@pytest.mark.slow
def test_requests_over_a_socket_that_is_gone_at_the_end(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "dovetail", "serve", str(pair / "target"), "--context", "256", "--uds", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            until(lambda: path.exists() or child.poll() is not None)
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
                # Whatever name the client calls it by: no page of a browser reaches the socket.
                page = client.get("http://any.name/v1/models")
            assert page.json()["data"][0]["id"] == "target"
            assert stat.S_IMODE(path.stat().st_mode) == DEFAULT_MODE
            child.send_signal(signal.SIGTERM)
            printed, complaints = child.communicate(timeout=30)
        finally:
            child.kill()
    assert (child.returncode, complaints) == (0, "")
    assert str(path) in printed.replace("\n", "")
    assert not path.exists()


def test_the_printed_address_is_the_socket(pair: Path) -> None:
    served = plan(pair, uds="/run/the socket")
    assert address_of(served) == "on /run/the socket"
    assert curl(served).startswith("curl --unix-socket '/run/the socket' http://localhost/v1/chat/completions")


@pytest.mark.parametrize(("mode", "permissions"), [(None, 0o600), ("660", 0o660), ("0666", 0o666)])
def test_its_permissions(pair: Path, tmp_path: Path, mode: str | None, permissions: int) -> None:
    path = tmp_path / "s"
    earlier = os.umask(0)
    try:
        with listening(plan(pair, uds=str(path), **({} if mode is None else {"uds_mode": mode}))):
            assert stat.S_IMODE(path.stat().st_mode) == permissions
    finally:
        assert os.umask(earlier) == 0, "the umask of the process is as it was"


@pytest.mark.parametrize("mode", ["9", "888", "rw-", "-600", "06000"])
def test_a_mode_that_is_none(pair: Path, mode: str) -> None:
    with pytest.raises(PlanError, match="is no mode of a file"):
        plan(pair, uds="/run/s", uds_mode=mode)


def test_a_mode_without_a_socket(pair: Path) -> None:
    with pytest.raises(PlanError, match="set --uds too"):
        listening(plan(pair, uds_mode="600"))


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(path)
    with listening_at(path, 0o600, 8), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert not os.path.exists(path)


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with listening_at(path, 0o600, 8):
        with (
            pytest.raises(PlanError, match="another server answers there; choose another path"),
            listening_at(path, 0o600, 8),
        ):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_the_socket_of_a_later_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening_at(str(path), 0o600, 8):
        path.rename(tmp_path / "earlier")
        path.write_text("another's")
    assert path.exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file", "no socket, and is not removed"),
        ("none/s", "No such file or directory"),
        ("file/s", "Not a directory"),
        ("s" * 200, "path too long"),
    ],
)
def test_paths_that_cannot_be_used(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(PlanError, match=message), listening_at(str(tmp_path / path), 0o600, 8):
        pass
    assert (tmp_path / "file").read_text() == "kept"
