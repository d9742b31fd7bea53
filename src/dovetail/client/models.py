"""Which model of an endpoint is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dovetail.client.endpoint import Endpoint
from dovetail.client.not_tested import NotTested


async def choose_model(endpoint: Endpoint) -> int | None:
    """The model's context, if the endpoint lists it. Sets the endpoint's model if it lists exactly one."""
    reply = await endpoint.send("GET", "/v1/models")
    if reply.status in (401, 403):
        raise NotTested(f"it answered {reply.status}: a key is needed, or another one (--api-key-file)")
    listed = _listed(reply.body) if reply.status == 200 else {}
    if endpoint.model is None:
        if len(listed) != 1:
            answered = "" if reply.status == 200 else f" (/v1/models answered {reply.status})"
            names = ", ".join(sorted(listed)[:10]) or f"no model{answered}"
            raise NotTested(f"it lists {names}: choose one with --model-name")
        endpoint.model = next(iter(listed))
    elif listed and endpoint.model not in listed:
        raise NotTested(f"it does not serve {endpoint.model!r}, but {', '.join(sorted(listed)[:10])}")
    context = listed.get(endpoint.model, {}).get("max_model_len")
    return context if isinstance(context, int) else None


def _listed(body: bytes) -> dict[str, Mapping[str, Any]]:
    try:
        return {model["id"]: model for model in json.loads(body)["data"] if isinstance(model["id"], str)}
    except (ValueError, LookupError, TypeError):
        return {}
