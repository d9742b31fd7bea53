"""Why an endpoint, or something of it, could not be tested or measured."""

from __future__ import annotations


def encodable(text: str) -> str:
    """`text` without halves of surrogate pairs, which an endpoint may send and no file can hold."""
    return text.encode(errors="replace").decode()


class NotTested(Exception):
    """Something could not be tested. The message completes the sentence "not tested, because …".

    `blocking`: a fault of the endpoint or of the run, and not a feature that it does not have.
    """

    def __init__(self, because: str, *, blocking: bool = True) -> None:
        super().__init__(because)
        self.because = encodable(because)
        self.blocking = blocking
