"""Signatures of reasoning: a client returns it with its signature, which shows whether it is as this server sent it.

Reasoning that is not is rendered all the same, because a conversation may have begun at another server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator

import msgspec

from dovetail.formats.prompts.history import Repair

_DOMAIN = b"dovetail thinking\0"  # the key signs other things too
_BYTES = 16  # half of SHA-256, the least that RFC 2104 recommends


class SignedReasoning(msgspec.Struct, frozen=True):
    """Reasoning that a client returned with a signature. `field`: where the request has it."""

    field: str
    reasoning: str
    signature: str


class Signatures:
    """Signs and checks reasoning with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, reasoning: str) -> str:
        """The signature of `reasoning`."""
        tag = hmac.digest(self._key, _DOMAIN + reasoning.encode(), hashlib.sha256)
        return base64.b64encode(tag[:_BYTES]).decode()

    def check(self, signed: Iterable[SignedReasoning]) -> Iterator[Repair]:
        """A report for each that has changed since it was signed, or was never signed with this key."""
        for one in signed:
            if not hmac.compare_digest(self.sign(one.reasoning).encode(), one.signature.encode()):
                yield Repair("foreign_thinking", one.field, "not signed by this server, or changed; rendered as it is")
