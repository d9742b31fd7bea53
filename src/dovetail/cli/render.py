"""`dovetail render`: the prompt that the gateway would make of a chat completions request."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import msgspec
from rich.console import Console

import dovetail
from dovetail.cli import prompt_diff
from dovetail.cli.files import read_json
from dovetail.cli.terminal import prompt_text
from dovetail.errors import InvalidRequest
from dovetail.formats.prompts.history import listed_kinds
from dovetail.gateway.apis.chat_request import decode, turn_request
from dovetail.gateway.turn.prompt import render_prompt
from dovetail.gateway.turn.turn_request import TurnRequest


def run(arguments: argparse.Namespace) -> int:
    if arguments.model is None and (arguments.ids or arguments.diff == "model"):
        option = "--ids" if arguments.ids else "--diff model"
        raise InvalidRequest(f"{option} needs --model: a format's name alone gives no tokenizer and no template")
    fmt = dovetail.format(arguments.model or arguments.format)
    request = _request(arguments)
    off = request.extension.repairs_off(()) | listed_kinds(arguments.no_repair)
    messages, repairs = fmt.repair(request.messages, request.tools, off=off)
    prompt = render_prompt(request, fmt, messages)
    tokenizer = dovetail.tokenizer(arguments.model) if arguments.model else None
    if not arguments.json:
        if fmt.because:
            print(f"format {fmt.name}: {fmt.because}", file=sys.stderr)
        for repair in repairs:
            print(f"repaired {repair.where}: {repair.kind} {repair.detail}".rstrip(), file=sys.stderr)
    if arguments.diff is not None:
        template = prompt_diff.template(arguments.diff, arguments.model, tools=bool(request.tools))
        controls = tokenizer.control if tokenizer else prompt.pieces[1::2]
        other = prompt_diff.by_template(template, request, fmt, messages, controls)
        return prompt_diff.show(prompt, other, (fmt.name, arguments.diff), as_json=arguments.json)
    ids = prompt.ids(tokenizer) if tokenizer else None
    if arguments.json:
        segments = [segment._asdict() for segment in prompt.segments]
        shown: dict[str, Any] = {"text": prompt.text, "segments": segments, "repairs": repairs}
        print(msgspec.json.encode(shown | ({} if ids is None else {"ids": ids})).decode())
    elif arguments.ids:
        print(ids)
    elif sys.stdout.isatty():
        Console(highlight=False).print(prompt_text(prompt), soft_wrap=True)
    else:
        sys.stdout.write(prompt.text)  # without a line break at the end
    return 0


def _request(arguments: argparse.Namespace) -> TurnRequest:
    body = read_json(arguments.request)
    if not isinstance(body, dict):
        raise InvalidRequest(f"{arguments.request} must hold a JSON object with `messages`")
    if arguments.no_generation_prompt:
        body["add_generation_prompt"] = False
    if arguments.continue_final_message:
        body["continue_final_message"] = True
    # The prompt does not depend on the name of the model, so the request may leave it out.
    return turn_request(decode(json.dumps({"model": "", **body}).encode()))
