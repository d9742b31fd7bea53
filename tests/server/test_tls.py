"""HTTPS: a request over it, and files that cannot be used."""

from __future__ import annotations

import shutil
import signal
import ssl
from pathlib import Path

import httpx
import pytest

from dovetail.cli.terminal import address_of, curl
from dovetail.errors import PlanError
from dovetail.plan import resolve
from dovetail.server.tls import tls_context
from tests.cli.conftest import Dovetail
from tests.cli.test_serve import free_port, serving

FILES = Path(__file__).parent / "tls"
CERTIFICATE, KEY = str(FILES / "server.pem"), str(FILES / "server.key")


@pytest.mark.slow
def test_requests_over_https_and_not_over_http(pair: Path) -> None:
    port = free_port()
    options = "--context", "256", "--ssl-certfile", CERTIFICATE, "--ssl-keyfile", KEY
    with serving(port, pair / "target", *options) as child:
        trusted = ssl.create_default_context(cafile=CERTIFICATE)
        page = httpx.get(f"https://127.0.0.1:{port}/v1/models", verify=trusted, timeout=60)
        assert page.json()["data"][0]["id"] == "target"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=60)
        child.send_signal(signal.SIGTERM)
        printed, complaints = child.communicate(timeout=30)
    assert (child.returncode, complaints) == (0, "")
    assert f"https://127.0.0.1:{port}" in printed


def test_the_printed_address_is_https(pair: Path) -> None:
    plan = resolve(str(pair / "target"), {"ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY, "port": 8443})
    assert address_of(plan) == "https://127.0.0.1:8443"
    assert curl(plan).startswith("curl https://127.0.0.1:8443/")


def test_the_key_may_be_in_the_certificates_file(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes((FILES / "server.pem").read_bytes() + (FILES / "server.key").read_bytes())
    context = tls_context(str(both), None)
    assert context is not None and context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_without_files_there_is_no_tls() -> None:
    assert tls_context(None, None) is None


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (None, KEY, "without a certificate: set --ssl-certfile"),
        ("/no/such.pem", KEY, "ssl_certfile /no/such.pem cannot be read: No such file"),
        (CERTIFICATE, "/no/such.key", "ssl_keyfile /no/such.key cannot be read: No such file"),
        (CERTIFICATE, str(FILES), "cannot be read: Is a directory"),
        (CERTIFICATE, str(FILES / "other.key"), "does not belong to the certificate"),
        (CERTIFICATE, str(FILES / "encrypted.key"), "needs a passphrase"),
        (CERTIFICATE, None, "in which the key has to be too, cannot be used"),
        (__file__, KEY, "cannot be used for TLS: they must be PEM files"),
        (CERTIFICATE, CERTIFICATE, "cannot be used for TLS"),
    ],
)
def test_files_that_cannot_be_used(certificate: str | None, key: str | None, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        tls_context(certificate, key)


def test_a_wrong_key_is_one_message(dovetail: Dovetail, pair: Path, tmp_path: Path) -> None:
    shutil.copy(FILES / "other.key", tmp_path / "key")
    options = "--ssl-certfile", CERTIFICATE, "--ssl-keyfile", tmp_path / "key", "--port", str(free_port())
    refused = dovetail("serve", pair / "target", *options)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "does not belong to the certificate" in refused.stderr
