"""A text that a client keeps and returns, and that only the server can read, for the tenant that it was made for.

Encrypted and authenticated from one key (RFC 5297's construction): the tag of the text is also the nonce of a stream
cipher, which is SHAKE256 of a secret and that tag. Equal texts of one tenant have equal seals; nothing else shows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

_VERSION = b"\x01"
_TAG_BYTES = 16


class SealedText:
    """Makes and opens the seals of one tenant. `key`: the server's secret. `owner`: what stands for the tenant."""

    def __init__(self, key: bytes, owner: str) -> None:
        self._authentication, self._encryption = (
            hmac.digest(key, b"dovetail sealed text\0" + use + owner.encode(), hashlib.sha256)
            for use in (b"authentication\0", b"encryption\0")
        )

    def seal(self, text: str) -> str:
        """The seal of `text`."""
        plain = text.encode()
        tag = self._tag(plain)
        return base64.b64encode(_VERSION + tag + self._ciphered(plain, tag)).decode()

    def open(self, sealed: str) -> str | None:
        """The text in `sealed`; None if it was not made with this key for this tenant, or has changed since."""
        try:
            body = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            return None
        version, tag, ciphered = body[:1], body[1 : 1 + _TAG_BYTES], body[1 + _TAG_BYTES :]
        plain = self._ciphered(ciphered, tag)
        if version != _VERSION or not hmac.compare_digest(tag, self._tag(plain)):
            return None
        return plain.decode()

    def _tag(self, plain: bytes) -> bytes:
        return hmac.digest(self._authentication, plain, hashlib.sha256)[:_TAG_BYTES]

    def _ciphered(self, text: bytes, tag: bytes) -> bytes:
        """`text` encrypted, or decrypted again."""
        stream = hashlib.shake_256(self._encryption + tag).digest(len(text))
        return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))
