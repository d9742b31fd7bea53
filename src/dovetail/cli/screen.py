"""What a person sees: the plan as a table, a curl command that works when pasted, and the colours of things."""

from __future__ import annotations

import json
import shlex

from rich.table import Table
from rich.text import Text

from dovetail.plan import Plan

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


def plan_table(plan: Plan) -> Table:
    """One row for every setting: its value and where it came from."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", style="cyan")
    table.add_column("from", no_wrap=True, style="dim")
    for name in plan.__struct_fields__:
        setting = getattr(plan, name)
        # `Text`, because a path may hold what rich would read as markup.
        table.add_row(name, Text("none" if setting.value is None else str(setting.value)), setting.source)
    return table


def address(host: str, port: int) -> str:
    """The URL at which a server that listens on `host` is reached from its own machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def curl(plan: Plan) -> str:
    """A shell command that asks the plan's server for a tool call."""
    body = {
        "model": plan.served_model_name.value,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
        "tools": [_WEATHER],
    }
    lines = [f"curl {address(plan.host.value, plan.port.value)}/v1/chat/completions"]
    if plan.api_key_file.value is not None:
        lines.append(f'-H "Authorization: Bearer $(cat {shlex.quote(plan.api_key_file.value)})"')
    lines.append("-H 'Content-Type: application/json'")
    # One field a line; JSON does not mind line breaks between its fields, nor does the shell inside quotes.
    fields = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items())
    lines.append(f"-d {shlex.quote('{' + fields + '}')}")
    return " \\\n  ".join(lines)
