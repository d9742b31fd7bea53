"""Asks a running server for a constrained tool call, and counts the drafts that it accepted.

This is what readiness means in a cluster: a server whose drafter never drafts answers `/health`, and only costs speed.
`python3 -m dovetail.client.probe` is the chart's startup probe, and with `--health` the health check of the images.
It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

_TIMEOUT_S = 120.0
_HEALTH_TIMEOUT_S = 4.0
_MOST = 16_000_000  # bytes of a reply
_CITIES = ("Paris", "Oslo", "Lima")
#: The tool of all requests that Dovetail makes up.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Probe(NamedTuple):
    """What a server answered: a reason why it is not ready, or None; the calls' arguments; draft tokens."""

    problem: str | None
    calls: tuple[str, ...] = ()
    drafted: int = 0
    accepted: int = 0


def probe(port: int, *, key: str | None = None, drafts: bool = True, timeout: float = _TIMEOUT_S) -> Probe:
    """Ask the server at `port` of this machine for calls until it accepted a draft. `drafts`: whether it has to."""
    calls: list[str] = []
    drafted = accepted = 0
    try:
        model = _ask(port, key, "GET", "/v1/models", None, timeout)["data"][0]["id"]
        for city in _CITIES:
            answer = _ask(port, key, "POST", "/v1/chat/completions", _body(model, city), timeout)
            calls.append(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
            if not isinstance(json.loads(calls[-1])["city"], str):
                return Probe(f"the call's arguments do not fit their schema: {calls[-1]:.100}")
            speculation = answer["usage"].get("speculation") or {}
            drafted += speculation.get("drafted", 0)
            accepted += speculation.get("accepted", 0)
            if accepted or not drafts:
                return Probe(None, tuple(calls), drafted, accepted)
    except (OSError, http.client.HTTPException) as error:
        return Probe(f"the server does not answer: {error}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Probe(f"the server answered without a call: {type(error).__name__}: {error}")
    return Probe(
        f"no draft was accepted ({drafted} drafted): the drafter is off, or does not fit", tuple(calls), drafted
    )


def healthy(port: int, timeout: float = _HEALTH_TIMEOUT_S) -> bool:
    """Whether `/health` of the server at `port` of this machine answers with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _body(model: str, city: str) -> dict[str, Any]:
    return {
        "model": model,
        "temperature": 0,
        "max_tokens": 256,
        "messages": [{"role": "user", "content": f"Please get the weather for city {city}."}],
        "tools": [TOOL],
        "tool_choice": "required",
        "dovetail": {"strict": "schema"},
    }


def _ask(port: int, key: str | None, method: str, path: str, body: dict[str, Any] | None, timeout: float) -> Any:
    """The JSON of a reply. Raises `ValueError` for another status than 200 and for text that is not JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read(_MOST)
        if reply.status != 200:
            raise ValueError(f"status {reply.status}: {text[:300].decode(errors='replace')}")
        return json.loads(text)
    finally:
        connection.close()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m dovetail.client.probe", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="the server's port on this machine (default: 8000)")
    parser.add_argument("--key-file", type=Path, help="file with the server's API key")
    parser.add_argument("--no-drafts", action="store_true", help="do not ask for accepted drafts")
    parser.add_argument("--health", action="store_true", help="only ask whether the server is healthy")
    arguments = parser.parse_args(words)
    if arguments.health:
        return 0 if healthy(arguments.port) else 1
    key = None if arguments.key_file is None else arguments.key_file.read_text().strip()
    result = probe(arguments.port, key=key, drafts=not arguments.no_drafts)
    print(json.dumps(result._asdict()))
    return 0 if result.problem is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
