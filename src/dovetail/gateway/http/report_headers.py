"""Response headers that report how the prompt and the answer differ from what the request spells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from dovetail.formats.prompts.history import Repair
from dovetail.gateway.turn.turn import Rendered, Turn

#: Longest list of fields in a header, in characters, because proxies limit the length of a header.
_LONGEST_LIST = 1_000

Headers = list[tuple[bytes, bytes]]


def turn_headers(turn: Turn) -> Headers:
    """Headers that report how the answer differs from what the request spells; none for a request taken as it is.

    They are the repairs made to the history, the fields that no grammar enforces, the fields left out, control
    tokens that a raw prompt spells as text, and the limit on new tokens if it was cut.
    """
    return _present(
        {
            b"x-dovetail-repairs": repair_counts(turn.repairs).encode(),
            b"x-dovetail-unenforced": _field_list(turn.unenforced),
            b"x-dovetail-omitted": _field_list(turn.request.omitted),
            b"x-dovetail-spelled-controls": _field_list(turn.spelled_controls),
            b"x-dovetail-max-tokens": str(turn.max_tokens).encode() if turn.max_tokens_cut else b"",
        }
    )


def rendered_headers(rendered: Rendered) -> Headers:
    """The repairs made to the history and the fields left out, if there are any."""
    return _present(
        {
            b"x-dovetail-repairs": repair_counts(rendered.repairs).encode(),
            b"x-dovetail-omitted": _field_list(rendered.request.omitted),
        }
    )


def _present(headers: dict[bytes, bytes]) -> Headers:
    return [(name, value) for name, value in headers.items() if value]


def repair_counts(repairs: Sequence[Repair]) -> str:
    """The number of repairs of each kind, as in `call_id=3,result_id=3`."""
    if not repairs:
        return ""
    return ",".join(f"{kind}={n}" for kind, n in Counter(repair.kind for repair in repairs).items())


def _field_list(fields: Sequence[str]) -> bytes:
    """As many fields as fit, percent-encoded like a JSON pointer in a URI, and the number of the others."""
    shown: list[str] = []
    room = _LONGEST_LIST
    for field in fields:
        if len(field) > room:  # skipped without encoding it, which makes nothing shorter: there may be very many
            continue
        encoded = quote(field, safe="/#[]$~:@!&'()*+=?")
        if len(encoded) <= room:
            shown.append(encoded)
            room -= len(encoded)
    rest = len(fields) - len(shown)
    return ", ".join((*shown, *([f"{rest} more"] if rest else []))).encode()
