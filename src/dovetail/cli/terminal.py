"""Output for a terminal: styles, labelled texts, prompts, and a curl command that can be pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dovetail.client.probe import TOOL
from dovetail.plan import Plan
from dovetail.tokens import Prompt

CONTROL = "bold magenta"
REASONING = "dim italic"
CALL = "cyan"
PROBLEM = "yellow"


#: Characters that change the direction of the text around them, and line separators that are no line breaks.
_INVISIBLE = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
#: Control characters -> the signs that stand for them, because raw ones in a prompt could control the terminal.
_VISIBLE: dict[int, int | str] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_VISIBLE |= {code: f"<U+{code:04X}>" for code in _INVISIBLE}


def visible(text: str) -> str:
    """`text` with visible signs in place of control characters and marks of direction, except for tabs and line
    breaks."""
    return text.translate(_VISIBLE)


def prompt_text(prompt: Prompt) -> Text:
    """`prompt` with its control tokens in colour."""
    return Text.assemble(*((visible(text), CONTROL if control else "") for text, control in prompt.segments))


def labelled(
    console: Console, rows: Iterable[tuple[str, str]], *, label: str = "bold", text: str = "", indent: int = 0
) -> None:
    """Print rows of a label and a text, which wraps beside its label. `label` and `text` are styles."""
    rows = [(visible(name), visible(content)) for name, content in rows]
    names = max((cell_len(name) for name, _ in rows), default=0)
    gap = indent + (names + 2 if names else 0)
    for name, content in rows:
        head = Text(" " * indent).append(set_cell_size(name, gap - indent), label)
        for line in Text(content, text).wrap(console, max(console.width - gap, 1)) or [Text()]:
            line.rstrip()
            console.print(head.append_text(line), soft_wrap=True)
            head = Text(" " * gap)


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The URL of a server that listens on `host`, as seen from its own machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def address_of(plan: Plan) -> str:
    """Where the plan's server listens: its URL, or its Unix socket."""
    if plan.value("uds") is not None:
        return f"on {visible(plan.value('uds'))}"
    return url_of(plan.value("host"), plan.value("port"), _scheme(plan))


def _scheme(plan: Plan) -> str:
    return "http" if plan.value("ssl_certfile") is None else "https"


def curl(plan: Plan, *, tools: bool = True, key_variable: str | None = None) -> str:
    """A shell command that requests a tool call from the plan's server, or a plain answer if not `tools`.

    `key_variable`: the environment variable with the API key, if there is one and the plan names no file of the key.
    """
    question = "Please get the weather for city Paris." if tools else "What is the capital of France?"
    body = {
        "model": plan.value("served_model_name"),
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
        **({"tools": [TOOL]} if tools else {}),
    }
    scheme, path = _scheme(plan), plan.value("uds")
    base = url_of(plan.value("host"), plan.value("port"), scheme)
    if path is not None:
        base = f"--unix-socket {shlex.quote(path)} {scheme}://localhost"
    lines = [f"curl {base}/v1/chat/completions"]
    if plan.value("api_key_file") is not None:
        lines.append(f'-H "Authorization: Bearer $(cat {shlex.quote(plan.value("api_key_file"))})"')
    elif key_variable is not None:
        lines.append(f'-H "Authorization: Bearer ${key_variable}"')
    lines.append("-H 'Content-Type: application/json'")
    # One field per line, which JSON allows between fields and the shell inside quotes.
    fields = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items())
    lines.append(f"-d {shlex.quote('{' + fields + '}')}")
    return " \\\n  ".join(lines)
