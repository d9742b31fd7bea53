"""vLLM's counters of draft tokens, in its /metrics: of all its answers together."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dovetail.client.endpoint import Endpoint
from dovetail.client.not_tested import NotTested

#: vLLM's counters (vllm/v1/spec_decode/metrics.py): steps that drafted, and the accepted drafts of each position.
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

#: A reading of counters: how many steps drafted, then how many drafts of each position were accepted.
Reading = list[int]


async def reading(endpoint: Endpoint) -> Reading | None:
    """vLLM's counters now, of all engines behind the endpoint; None if it has none."""
    try:
        reply = await endpoint.send("GET", "/metrics")
    except NotTested:
        return None
    return read(reply.body.decode(errors="replace")) if reply.status == 200 else None


def read(page: str) -> Reading | None:
    """The counters of a page in Prometheus' text format; None if it has none."""
    counters = "\n".join(line for line in page.split("\n") if line.startswith((_DRAFTS, _ACCEPTED)))
    drafts: list[int] = []
    accepted: dict[int, int] = {}
    try:
        for family in text_string_to_metric_families(counters + "\n"):
            for sample in family.samples:
                if sample.name == _DRAFTS:
                    drafts.append(int(sample.value))
                else:
                    position = int(sample.labels["position"])
                    accepted[position] = accepted.get(position, 0) + int(sample.value)
    except (ValueError, LookupError, OverflowError):
        return None
    return [sum(drafts), *(accepted[position] for position in sorted(accepted))] if drafts else None
