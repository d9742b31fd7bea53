"""`dovetail lint`: which keywords of tools' schemas a grammar does not enforce, and which schemas are refused."""

from __future__ import annotations

import argparse
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail
from dovetail.cli.files import read_json
from dovetail.cli.terminal import PROBLEM, visible
from dovetail.conversation import Tool, check_tool_types, check_tools
from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format
from dovetail.formats.tool_choice import usable
from dovetail.grammar import Grammar
from dovetail.grammar.grammar import Writer
from dovetail.grammar.lint import ToolLint, lint

FOUND = 1


def run(arguments: argparse.Namespace) -> int:
    named = arguments.model or arguments.format
    fmt = dovetail.format(named) if named else None
    writers: tuple[Writer, ...] = get_args(Writer) if arguments.writer == "both" else (arguments.writer,)
    tools = _tools(arguments.tools)
    found = [_lint(tool, fmt, writers) for tool in tools]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found, Console(highlight=False))
    return 0 if all(each.clean for each in found) else FOUND


def _tools(path: str) -> list[dict[str, Any]]:
    """The tools in a file: a list, or the body of a request."""
    held = read_json(path)
    tools = held.get("tools") if isinstance(held, dict) else held
    if not isinstance(tools, list):
        raise InvalidRequest(f"{path} must hold a JSON list of tools, or an object with `tools`")
    check_tool_types(tools)
    return [tool for tool in tools if "function" in tool]


def _lint(tool: dict[str, Any], fmt: Format | None, writers: tuple[Writer, ...]) -> ToolLint:
    """As a server takes the tool whose level is `schema`."""
    function = tool["function"]
    try:
        check_tools([{"type": "function", "function": function}])
    except InvalidRequest as refusal:
        return ToolLint(function["name"], {}, {}, refusal.message.removeprefix("tools[0].function."))
    strict = function.get("strict") is True
    held, left_out = usable(Tool(function["name"], parameters=function.get("parameters"), strict=strict))
    schema = {"type": "object", **(held.parameters or {})}
    if not strict:
        schema["type"] = "object"  # or it may be null, say

    def grammar() -> Grammar:
        assert fmt is not None
        said = {**function, "parameters": schema, "strict": True}
        made = fmt.grammar([{"type": "function", "function": said}], tool_choice="required")
        assert made is not None
        return made

    return lint(held.name, schema, writers, grammar if fmt else None, left_out)


def _show(found: list[ToolLint], console: Console) -> None:
    table = Table("tool", "where", "what", box=None, pad_edge=False, header_style="bold")
    for each in found:
        if each.problem is not None:
            pointer, _, why = each.problem.partition(": ")
            if not (why and pointer.startswith("#")):
                pointer, why = "", each.problem  # of the tool, or a sentence with the pointer in it
            table.add_row(visible(each.tool), Text(visible(pointer)), Text(f"refused: {visible(why)}", PROBLEM))
        for pointer in dict.fromkeys(pointer for pointers in each.unenforced.values() for pointer in pointers):
            writers = [writer for writer, pointers in each.unenforced.items() if pointer in pointers]
            by = "" if len(writers) == len(each.unenforced) > 1 else f" by {_LIBRARIES[writers[0]]}"
            left_out = pointer in each.left_out
            then = f"left out, because it {each.left_out[pointer]}" if left_out else "checked afterwards"
            table.add_row(visible(each.tool), Text(visible(pointer)), f"not enforced{by}: {then}")
    if table.row_count:
        console.print(table)
    clean = sum(each.clean for each in found)
    console.print(f"{clean} of {len(found)} tools are enforced in full", style="dim")


_LIBRARIES: dict[Writer, str] = {"lark": "llguidance", "structural_tag": "xgrammar"}
