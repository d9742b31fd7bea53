"""TLS of the server: a certificate and its key, read before anything loads."""

from __future__ import annotations

import ssl
from pathlib import Path

from dovetail.errors import PlanError


class _Encrypted(Exception):
    """The key in a file is encrypted with a passphrase."""


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """The context of a server with the chain of certificates in the file `certificate` and its private key.

    `key` may be None if the certificate's file has the key too. None without a certificate. TLS 1.2 is the oldest
    version. Raises `PlanError` for files that cannot be read, are not PEM, or do not belong together.
    """
    if certificate is None:
        if key is not None:
            raise PlanError("ssl_keyfile is set without a certificate: set --ssl-certfile too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _check_readable("ssl_certfile", certificate)
    if key is not None:
        _check_readable("ssl_keyfile", key)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except _Encrypted:
        raise PlanError(
            f"the key in {key or certificate} needs a passphrase, which a server cannot ask for: give a file without "
            "one (openssl pkey -in FILE -out NEW), and let only the server's user read it"
        ) from None
    except (ssl.SSLError, OSError) as error:
        raise PlanError(_explained(error, certificate, key)) from error
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise PlanError(f"{name} {path} cannot be read: {error.strerror}") from error


def _no_passphrase() -> str:
    raise _Encrypted


def _explained(error: OSError, certificate: str, key: str | None) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key or certificate} does not belong to the certificate in {certificate}"
    where = f"{certificate} and {key}" if key is not None else f"{certificate}, in which the key has to be too,"
    return f"{where} cannot be used for TLS: they must be PEM files with a certificate and its private key ({reason})"
