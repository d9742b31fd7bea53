"""What a person sees: labelled texts, prompts, a curl command that works when pasted, and the colours of things."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dovetail.plan import Plan
from dovetail.tokens import Prompt

CONTROL = "bold magenta"
REASONING = "dim italic"
CALL = "cyan"
PROBLEM = "yellow"

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


# A prompt is somebody else's text: shown as it is, it could move the cursor or rename the window.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """`text` with signs in place of control characters, except tabs and line breaks."""
    return text.translate(_VISIBLE)


def prompt_text(prompt: Prompt) -> Text:
    """A prompt in which control tokens stand out."""
    return Text.assemble(*((visible(text), CONTROL if control else "") for text, control in prompt.segments))


def labelled(
    console: Console, rows: Iterable[tuple[str, str]], *, label: str = "bold", text: str = "", indent: int = 0
) -> None:
    """Labels, and texts that wrap beside them; `label` and `text` are styles."""
    rows = [(visible(name), visible(said)) for name, said in rows]
    names = max((cell_len(name) for name, _ in rows), default=0)
    gap = indent + (names + 2 if names else 0)
    for name, said in rows:
        head = Text(" " * indent).append(set_cell_size(name, gap - indent), label)
        for line in Text(said, text).wrap(console, max(console.width - gap, 1)) or [Text()]:
            line.rstrip()
            console.print(head.append_text(line), soft_wrap=True)
            head = Text(" " * gap)


def url_of(host: str, port: int) -> str:
    """The URL at which a server that listens on `host` is reached from its own machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def curl(plan: Plan) -> str:
    """A shell command that asks the plan's server for a tool call."""
    body = {
        "model": plan.value("served_model_name"),
        "temperature": 0,
        "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
        "tools": [_WEATHER],
    }
    lines = [f"curl {url_of(plan.value('host'), plan.value('port'))}/v1/chat/completions"]
    if plan.value("api_key_file") is not None:
        lines.append(f'-H "Authorization: Bearer $(cat {shlex.quote(plan.value("api_key_file"))})"')
    lines.append("-H 'Content-Type: application/json'")
    # One field a line; JSON does not mind line breaks between its fields, nor does the shell inside quotes.
    fields = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items())
    lines.append(f"-d {shlex.quote('{' + fields + '}')}")
    return " \\\n  ".join(lines)
