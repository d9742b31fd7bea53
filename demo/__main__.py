"""Starts a server on a free port, runs the script on it in colour, then measures it with speculation on and off."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import openai
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.conversation import Answer, Show, converse

STYLES = {
    "user": "bold green",
    "reasoning": "dim italic",
    "content": "",
    "call": "bold cyan",
    "arguments": "cyan",
    "tool": "yellow",
}
RUNS = 3  # of each kind, in turns, so that other load on the machine meets both alike; the fastest of each counts


#: A small model that was not made for these tools calls one if it has to, and then answers in words.
_OF_ANOTHER_MODEL = ("required", "none")


def main() -> int:
    console = Console(highlight=False)
    choices = _OF_ANOTHER_MODEL if "--demo" in sys.argv else ("auto",)
    with _server(sys.argv[1:]) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        console.print(Text.assemble((model, "bold"), f" at {url}, speculation on"))
        converse(client, model, speculate=True, show=_shower(console), choices=choices)
        console.print(f"\n\n[dim]measuring: the same conversation {RUNS} times with speculation off and on[/]\n")
        runs: dict[bool, list[list[Answer]]] = {False: [], True: []}
        for _ in range(RUNS):
            for speculate, done in runs.items():
                run = converse(client, model, speculate=speculate, show=lambda kind, text: None, choices=choices)
                done.append(run)
    console.print(_figures(*(min(done, key=_seconds) for done in runs.values())))
    return 0


@contextlib.contextmanager
def _server(arguments: list[str]) -> Iterator[str]:
    """`dovetail serve` as a child on a free port, once it answers; its address. `arguments` go to it as they are."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "dovetail", "serve", *arguments, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            while child.poll() is None:
                # It listens before it is ready, and early clients wait; so to reach it once is enough.
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    yield f"http://127.0.0.1:{port}"
                    return
                time.sleep(0.1)
            # The reason is on stderr.
            sys.exit(child.returncode)
        finally:
            child.terminate()


def _shower(console: Console) -> Show:
    """Prints pieces as they stream, a new line with a label where the kind of piece changes."""
    last = ""

    def show(kind: str, text: str) -> None:
        nonlocal last
        if kind == "arguments":
            label = "  " if last == "call" else ""
        elif kind != last or kind in ("call", "tool"):
            label = f"\n{kind:<10} "
        else:
            label = ""
        console.print(Text.assemble((label, "dim"), (text, STYLES[kind])), end="", soft_wrap=True)
        last = kind

    return show


def _seconds(answers: list[Answer]) -> float:
    return sum(answer.seconds for answer in answers)


def _said(message: dict[str, Any]) -> dict[str, Any]:
    """The message without the ids of its calls, which are random where the model's format has none."""
    return message | {"tool_calls": [call["function"] for call in message.get("tool_calls", ())]}


def _figures(off: list[Answer], on: list[Answer]) -> Table:
    """Speed and steps side by side, and whether speculation left the text as it was."""

    def speed(answers: list[Answer]) -> float:
        return sum(answer.tokens for answer in answers) / _seconds(answers)

    def per_step(answers: list[Answer]) -> float:
        return sum(answer.tokens for answer in answers) / sum(answer.steps for answer in answers)

    drafted, accepted = sum(answer.drafted for answer in on), sum(answer.accepted for answer in on)
    same = [_said(answer.message) for answer in off] == [_said(answer.message) for answer in on]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("speculation", "off", "on", ""):
        table.add_column(heading, justify="left" if heading in ("speculation", "") else "right")
    table.add_row(
        "tokens/s, prompts included", f"{speed(off):.0f}", f"{speed(on):.0f}", f"{speed(on) / speed(off):.2f}x"
    )
    table.add_row("tokens per step", f"{per_step(off):.2f}", f"{per_step(on):.2f}", "")
    table.add_row("drafted tokens accepted", "", f"{accepted / drafted:.0%}" if drafted else "none", "")
    table.add_row(
        "same messages", "", "yes" if same else "NO", "" if same else "speculation must not change text: please report"
    )
    return table


sys.exit(main())
