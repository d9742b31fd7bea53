"""`--keep DIR`: a file for each failure, with all that is needed to see it again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.client.endpoint import Endpoint, Exchange, Target
from dovetail.verify.language import Language
from dovetail.verify.outcome import Failure


class Bundles:
    """Writes bundles into `folder`; without one, nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    async def write(self, failures: Sequence[Failure], target: Target, language: Language, run: int) -> None:
        if self._folder is None:
            return
        first = failures[0]
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{first.suite}-{first.case}-{run}")
        self._folder.mkdir(parents=True, exist_ok=True)
        exchanges = [await _exchange(target.endpoint, exchange, language) for exchange in target.exchanges]
        bundle = {"endpoint": target.endpoint.url, "failures": failures, "exchanges": exchanges}
        # In ASCII, because an endpoint may send halves of surrogate pairs.
        (self._folder / f"{name}.json").write_text(json.dumps(msgspec.to_builtins(bundle), indent=2) + "\n")


async def _exchange(endpoint: Endpoint, exchange: Exchange, language: Language) -> dict[str, Any]:
    """Request, raw answer, the text of its tokens, both readings, and the command that sends it again."""
    answer = exchange.answer
    ours = language.prompt(exchange.request)
    return {
        "request": exchange.request,
        "status": answer.status,
        "raw": answer.raw,
        "prompt": await language.text(endpoint, answer.prompt_ids),
        "our_prompt": None if ours is None else ours.text,
        "text": await language.text(endpoint, answer.ids),
        "read_by_endpoint": answer.message,
        "read_by_us": await language.reading(endpoint, exchange),
        "command": curl(exchange.url, exchange.request),
    }


def curl(url: str, request: Any) -> str:
    """The request as a command for a shell. The key is to be in a variable."""
    body = shlex.quote(json.dumps(request, ensure_ascii=False))
    headers = "-H 'Content-Type: application/json' -H \"Authorization: Bearer $OPENAI_API_KEY\""
    return f"curl {shlex.quote(url)}/v1/chat/completions {headers} -d {body}"
