"""`dovetail parse`: the message that the gateway would make of a model's whole output."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.cli.files import print_json, read_json, read_text
from dovetail.cli.terminal import CALL, PROBLEM, REASONING
from dovetail.conversation import check_tools
from dovetail.events import Message
from dovetail.reading.defects import KINDS


def run(arguments: argparse.Namespace) -> None:
    fmt = dovetail.format(arguments.format)
    tools = read_json(arguments.tools) if arguments.tools else None
    check_tools(tools)
    message = fmt.parse(
        read_text("-"),
        tools,
        reason=arguments.finish,
        thinking=arguments.thinking,
        repair_arguments=arguments.repair_arguments,
        on_malformed_call=arguments.on_malformed_call,
    )
    if arguments.json:
        print_json(message)
    else:
        _show(message)


def _show(message: Message) -> None:
    console = Console(highlight=False)
    rows = [("reasoning", message.reasoning, REASONING), ("content", message.content, "")]
    rows += [("call", f"{call.id}  {call.name}({call.arguments})", CALL) for call in message.calls]
    for defect in message.defects:
        rows.append(("defect", f"{defect.kind} {defect.detail}".rstrip() + f" ({KINDS[defect.kind]})", PROBLEM))
    for label, text, style in rows:
        if text:
            console.print(Text.assemble((f"{label:<10}", "bold"), (text, style)), soft_wrap=True)
