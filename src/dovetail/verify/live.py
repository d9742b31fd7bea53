"""`dovetail verify URL --watch S`: what a served gateway does to real traffic, from the counters of its /metrics.

Shares are of what happened since the reading before, or since the server started for the first one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from dovetail.client.endpoint import Endpoint
from dovetail.client.not_tested import NotTested

#: A share: its name, the counter above and the counter below. `#faulty` and `#answers` are sums that `counters` adds.
SHARES = (
    ("calls that do not validate", "#faulty", "dovetail_calls_total"),
    ("schema mismatches", "#schema_mismatch", "dovetail_calls_total"),
    ("defects per answer", "dovetail_defects_total", "#answers"),
    ("repairs per answer", "dovetail_repairs_total", "#answers"),
    ("retries per answer", "dovetail_retries_total", "#answers"),
    ("accepted drafts", "dovetail_accepted_tokens_total", "dovetail_drafted_tokens_total"),
)
#: The shares that an alarm is about: the others are no faults of an answer.
ALARMING = ("calls that do not validate", "schema mismatches", "defects per answer", "retries per answer")
#: Of a call whose arguments cannot be checked in bounded time nothing is known.
_NO_FAULT = (None, "none", "unchecked_arguments")
_ANSWERED = ("stop", "length", "tool_calls")


class Share(msgspec.Struct, frozen=True):
    """`value`: None if there was nothing to share."""

    name: str
    value: float | None
    n: int


def counters(page: str) -> dict[str, float]:
    """The sums of Dovetail's counters over their labels. Raises `NotTested` for a page without them."""
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                for name in _names(sample.name, sample.labels):
                    sums[name] = sums.get(name, 0.0) + sample.value
    except ValueError:
        raise NotTested("its /metrics is not in Prometheus' text format") from None
    if "dovetail_ready" not in sums:
        raise NotTested("its /metrics is not a Dovetail gateway's")
    return sums


def _names(name: str, labels: Mapping[str, str]) -> Iterator[str]:
    """The sums that a sample counts in."""
    yield name
    if name == "dovetail_calls_total" and labels.get("fault") not in _NO_FAULT:
        yield "#faulty"
        yield f"#{labels['fault']}"
    if name == "dovetail_requests_total" and labels.get("outcome") in _ANSWERED:
        yield "#answers"


def shares(before: Mapping[str, float], after: Mapping[str, float]) -> list[Share]:
    """The shares of what was counted between two readings. A counter that fell was started again at 0."""

    def grown(name: str) -> float:
        growth = after.get(name, 0.0) - before.get(name, 0.0)
        return growth if growth >= 0 else after.get(name, 0.0)

    return [
        Share(name, grown(above) / grown(below) if grown(below) else None, int(grown(below)))
        for name, above, below in SHARES
    ]


def alarms(of: list[Share], threshold: float) -> list[Share]:
    """The alarming shares above the threshold."""
    return [share for share in of if share.name in ALARMING and share.value is not None and share.value > threshold]


async def read(endpoint: Endpoint) -> dict[str, float]:
    """The counters now. Raises `NotTested`."""
    reply = await endpoint.send("GET", "/metrics")
    if reply.status != 200:
        raise NotTested(f"its /metrics answers {reply.status}")
    return counters(reply.body.decode(errors="replace"))


async def watch(
    endpoint: Endpoint,
    seconds: float,
    readings: int | None,
    report: Callable[[list[Share]], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Report the shares of each period of so many seconds, after those since the server's start. `readings`: how many
    reports there are; None: without end. Raises `NotTested` if the counters cannot be read."""
    before: dict[str, float] = {}
    for number in itertools.count():
        if number == readings:
            return
        if number:
            await sleep(seconds)
        after = await read(endpoint)
        report(shares(before, after))
        before = after
