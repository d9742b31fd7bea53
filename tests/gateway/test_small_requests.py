"""What may be prepared on the event loop: nothing of which a client decides how long it takes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dovetail.errors import EngineBusy
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.http.draining import Draining

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({}, True),
        ({"tools": []}, True),
        ({"tools": [TOOL]}, False),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"dovetail": {"reasoning_budget": 5}}, False),
        ({"n": 2}, False),
        ({"messages": [{"role": "system", "content": "", "tools": [TOOL]}]}, False),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]}, False),
    ],
)
def test_plain_requests_have_nothing_to_compile(fields: dict[str, Any], plain: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    assert ChatCompletion(json.dumps(body).encode()).turn_request.is_plain == plain


def test_draining_ends_the_wait_for_a_first_step_and_nothing_else() -> None:
    async def main() -> None:
        draining, never = Draining(), asyncio.Event()

        async def late() -> None:
            raise TimeoutError("its own")

        assert await draining.first(asyncio.sleep(0, "step")) == "step"
        with pytest.raises(TimeoutError, match="its own"):
            await draining.first(late())
        waiting = asyncio.ensure_future(draining.first(never.wait()))
        await asyncio.sleep(0)
        draining.start()
        with pytest.raises(EngineBusy, match="shutting down"):
            await waiting

    asyncio.run(main())
