"""Response headers with what remains of a key's limits, in OpenAI's form and in Anthropic's."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from dovetail.gateway.limits.accounts import Account


def limit_headers(account: Account, *, anthropic: bool) -> dict[str, str]:
    """The limit, what remains of it and when all of it does, for requests and for tokens, as far as there are limits.

    https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
    https://docs.claude.com/en/api/rate-limits#response-headers
    """
    headers: dict[str, str] = {}
    for unit, limit, remaining, full_in in account.meters():
        if anthropic:
            full_at = datetime.now(UTC) + timedelta(seconds=math.ceil(full_in))
            values = {"limit": f"{limit}", "remaining": f"{remaining}", "reset": f"{full_at:%Y-%m-%dT%H:%M:%SZ}"}
            headers |= {f"anthropic-ratelimit-{unit}-{field}": value for field, value in values.items()}
        else:
            values = {"limit": f"{limit}", "remaining": f"{remaining}", "reset": duration(full_in)}
            headers |= {f"x-ratelimit-{field}-{unit}": value for field, value in values.items()}
    return headers


def duration(seconds: float) -> str:
    """A duration as Go writes it, rounded up to milliseconds: `6m0s`, `1.5s`, `20ms`.

    https://pkg.go.dev/time#Duration.String
    """
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    rest = f"{milliseconds / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{rest}"
    return f"{minutes}m{rest}" if minutes else rest
