"""`dovetail render`: the prompt that a chat completions request becomes, as the gateway would make it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.cli.files import read_json
from dovetail.cli.screen import CONTROL
from dovetail.errors import InvalidRequest
from dovetail.gateway.requests import decode
from dovetail.tokens import Prompt


def run(arguments: argparse.Namespace) -> None:
    if arguments.ids and arguments.model is None:
        raise InvalidRequest("--ids needs --model: token ids are the tokenizer's, and a format has none of its own")
    fmt = dovetail.format(arguments.model or arguments.format)
    body = read_json(arguments.request)
    if not isinstance(body, dict):
        raise InvalidRequest(f"{arguments.request} must hold a JSON object with `messages`")
    # Which model answers does not matter to a prompt, so a request to render need not name one.
    request = decode(json.dumps({"model": "", **body}).encode())
    messages, repairs = (
        fmt.repair(request.messages, request.tools) if request.extension.repair else (request.messages, [])
    )
    prompt = fmt.render(messages, request.tools, thinking=request.thinking, **request.template_options)
    ids = prompt.ids(dovetail.tokenizer(arguments.model)) if arguments.model else None
    if arguments.json:
        shown: dict[str, Any] = {
            "text": prompt.text,
            "segments": [s._asdict() for s in prompt.segments],
            "repairs": repairs,
        }
        print(msgspec.json.encode(shown | ({} if ids is None else {"ids": ids})).decode())
        return
    for repair in repairs:
        print(f"repaired {repair.where}: {repair.kind} {repair.detail}".rstrip(), file=sys.stderr)
    if arguments.ids:
        print(ids)
    else:
        _show(prompt)


def _show(prompt: Prompt) -> None:
    """On a terminal, control tokens stand out; elsewhere the text goes out as it is, to the byte."""
    if sys.stdout.isatty():
        text = Text.assemble(*((text, CONTROL if control else "") for text, control in prompt.segments))
        Console(highlight=False).print(text, soft_wrap=True)
    else:
        sys.stdout.write(prompt.text)
