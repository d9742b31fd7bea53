"""Token ids of a conversation that grows: the first time, and the next turn, which has two messages more.

As `worker`, in a process of its own; needs Dovetail.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from time import process_time
from typing import Any

import dovetail
from benchmarks.rendering import conversation
from benchmarks.rendering.worker import Job
from dovetail.formats.derived.template import Template, pattern
from dovetail.tokens import Prompt, Tokenizer


def measured(job: Job) -> dict[str, Any]:
    """Medians over rounds, each with a tokenizer that remembers nothing yet."""
    rounds = [_round(job) for _ in range(job["rounds"])]
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _round(job: Job) -> dict[str, float]:
    tokenizer = dovetail.tokenizer(job["tokenizer"])
    count, tools = job["messages"], conversation.tools()
    template = Template(job["template"]) if job["template"] else None

    def render(messages: int) -> Prompt:
        request = json.loads(json.dumps(conversation.messages(messages)))
        if template is None:
            return dovetail.format(job["family"]).render(request, tools)
        controls = pattern(tokenizer.control)
        return template.render(request, tools, controls=controls, add_generation_prompt=True, options=job["options"])

    now, then = render(count), render(count + 2)
    gc.collect()
    gc.freeze()
    tokenizer.encode("Words that warm it up, 123. ")
    begin = process_time()
    ids = now.ids(tokenizer)
    first = process_time() - begin
    tokenized = _counted(tokenizer)
    begin = process_time()
    then.ids(tokenizer)
    following = process_time() - begin
    return {
        "characters": len(now.text),
        "ids": len(ids),
        "first": first,
        "next": following,
        "tokenized": sum(map(len, tokenized)),
    }


def _counted(tokenizer: Tokenizer) -> list[str]:
    """The texts that `tokenizer` is made to encode from here on."""
    asked: list[str] = []
    encode = tokenizer._encode_place

    def counting(text: str) -> list[int]:
        asked.append(text)
        return encode(text)

    tokenizer._encode_place = counting  # type: ignore[method-assign]
    return asked


if __name__ == "__main__":
    json.dump(measured(json.load(sys.stdin)), sys.stdout)
