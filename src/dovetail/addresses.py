"""The parts of an HTTP server's URL that a user gives."""

from __future__ import annotations

from urllib.parse import urlsplit


def base_of(url: str) -> tuple[str, str] | None:
    """The base of `url` without a final /v1, and the same without the scheme. None if it is no HTTP URL."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = (host if port is None else f"{host}:{port}") + parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{where}", where
