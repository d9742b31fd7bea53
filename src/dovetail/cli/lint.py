"""`dovetail lint`: what a grammar does not enforce in the schemas of tools, and which schemas are refused."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import dovetail
from dovetail.cli.files import print_json, read_json
from dovetail.cli.terminal import PROBLEM, visible
from dovetail.conversation import Tool, check_tool_types, check_tools
from dovetail.custom_tools import DEFINITION, input_grammar, is_custom
from dovetail.errors import InvalidRequest
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.answers.tool_choice import usable
from dovetail.formats.base import Format
from dovetail.grammar import Grammar
from dovetail.grammar.grammar import Writer
from dovetail.grammar.lint import ToolLint, lint

PROBLEMS = 1  # the exit code if any tool is not enforced in full


def run(arguments: argparse.Namespace) -> int:
    named = arguments.model or arguments.format
    fmt = dovetail.format(named) if named else None
    writers: tuple[Writer, ...] = ("lark", "structural_tag") if arguments.writer == "both" else (arguments.writer,)
    tools = _tools(arguments.tools)
    results = [_lint(tool, fmt, writers) for tool in tools]
    if arguments.json:
        print_json(results)
    else:
        _show(results, Console(highlight=False))
    return 0 if all(result.clean for result in results) else PROBLEMS


def _tools(path: str) -> list[dict[str, Any]]:
    """The tools in a file, which holds a list of them or the body of a request."""
    content = read_json(path)
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list):
        raise InvalidRequest(f"{path} must hold a JSON list of tools, or an object with `tools`")
    check_tool_types(tools)
    return [tool for tool in tools if "function" in tool or is_custom(tool)]


def _lint(tool: dict[str, Any], fmt: Format | None, writers: tuple[Writer, ...]) -> ToolLint:
    """The lint of `tool`, treated as a server does at the level `schema`."""
    if is_custom(tool):
        return _lint_custom(tool, fmt, writers)
    function = tool["function"]
    try:
        check_tools([{"type": "function", "function": function}])
    except InvalidRequest as refusal:
        return ToolLint(function["name"], {}, {}, refusal.message.removeprefix("tools[0].function."))
    strict = function.get("strict") is True
    usable_tool, left_out = usable(Tool(function["name"], parameters=function.get("parameters"), strict=strict))
    schema = {"type": "object", **(usable_tool.parameters or {})}
    if not strict:
        schema["type"] = "object"  # the schema itself may allow null, for example

    def grammar() -> Grammar:
        assert fmt is not None
        strict_function = {**function, "parameters": schema, "strict": True}
        grammar = fmt.grammar([{"type": "function", "function": strict_function}], tool_choice="required")
        assert grammar is not None
        return grammar

    return lint(usable_tool.name, schema, writers, grammar if fmt else None, left_out)


def _lint_custom(tool: dict[str, Any], fmt: Format | None, writers: tuple[Writer, ...]) -> ToolLint:
    """The lint of a custom tool, whose grammar is enforced as a whole or not at all. Without `fmt`, calls are JSON."""
    name = tool["custom"]["name"]
    try:
        check_tools([tool])
        client = input_grammar(tool)
        if client is None:
            return ToolLint(name, {}, {})
        answer = fmt.grammar([tool], tool_choice="required") if fmt else Grammar(ClientGrammar(client, "").in_json())
    except InvalidRequest as refusal:
        return ToolLint(name, {}, {}, refusal.message.partition(" cannot be enforced: ")[2] or refusal.message)
    assert answer is not None
    return ToolLint(name, {writer: (DEFINITION,) for writer in writers if [*answer.unenforced(writer)]}, {})


def _show(results: list[ToolLint], console: Console) -> None:
    table = Table("tool", "where", "what", box=None, pad_edge=False, header_style="bold")
    for result in results:
        if result.problem is not None:
            pointer, _, reason = result.problem.partition(": ")
            if not (reason and pointer.startswith("#")):  # about the whole tool, or a sentence with the pointer in it
                pointer, reason = "", result.problem
            table.add_row(visible(result.tool), Text(visible(pointer)), Text(f"refused: {visible(reason)}", PROBLEM))
        for pointer in dict.fromkeys(pointer for pointers in result.unenforced.values() for pointer in pointers):
            writers = [writer for writer, pointers in result.unenforced.items() if pointer in pointers]
            by = "" if len(writers) == len(result.unenforced) > 1 else f" by {_LIBRARIES[writers[0]]}"
            left_out = pointer in result.left_out
            then = f"left out, because it {result.left_out[pointer]}" if left_out else "checked afterwards"
            table.add_row(visible(result.tool), Text(visible(pointer)), f"not enforced{by}: {then}")
    if table.row_count:
        console.print(table)
    clean = sum(result.clean for result in results)
    console.print(f"{clean} of {len(results)} tools are enforced in full", style="dim")


_LIBRARIES: dict[Writer, str] = {"lark": "llguidance", "structural_tag": "xgrammar", "gbnf": "llama.cpp"}
