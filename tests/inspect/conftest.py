"""The fixtures of the gateway's tests."""

from tests.gateway.conftest import anyio_backend, engine, tok

__all__ = ["anyio_backend", "engine", "tok"]
