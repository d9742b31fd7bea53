"""Slow, obvious readings of a whole output of four families: what every stream of it must add up to.

Each has the whole text before it, splits it at the family's markup and looks ahead as it likes; a reader never does.
They were written from the laws and the formats' own descriptions, and read only what those decide: `test_oracles.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Schemas = dict[str, dict[str, Any]]  # the parameters of every tool, by its name


@dataclass
class Read:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)  # name; values, or the text so far of JSON cut short
    whole: list[bool] = field(default_factory=list)  # whether each call was finished


def loads(text: str) -> Any:
    """JSON with its digits, and none of Python's own words."""
    return json.loads(text, parse_float=Decimal, parse_constant=lambda word: json.loads(f"!{word}"))


def _split(markup: str, text: str) -> list[tuple[str, re.Match[str] | None]]:
    """The text in order: what stands between tags (with None), and the tags (with their match)."""
    pieces: list[tuple[str, re.Match[str] | None]] = []
    at = 0
    for tag in re.finditer(markup, text, re.DOTALL):
        pieces += [(text[at : tag.start()], None), (tag[0], tag)]
        at = tag.end()
    return [piece for piece in (*pieces, (text[at:], None)) if piece[0]]


# -- DSML -------------------------------------------------------------------------------------------------------------

DSML = (
    r"(?P<think></?think>)|(?P<section>(?:\n\n)?<｜DSML｜function_calls>)|(?P<close></｜DSML｜function_calls>)"
    r'|(?P<call><｜DSML｜invoke name="(?P<name>[^"]*)">)|(?P<call_end></｜DSML｜invoke>)'
    r'|(?P<value><｜DSML｜parameter name="(?P<key>[^"]*)" string="(?P<string>true|false)">)'
    r"|(?P<value_end></｜DSML｜parameter>)|(?P<end><｜end▁of▁sentence｜>)"
)
#: What a call in open reasoning must have: an argument or an end.
DSML_CALLED = r'<｜DSML｜parameter name="[^"]*" string="(?:true|false)">|</｜DSML｜invoke>'


def deepseek_v32(text: str, schemas: Schemas, *, thinking: bool, reason: str) -> Read:
    """Tags say whether a value is a string as it stands or JSON."""
    out, mode, key, string, value = Read(), "reasoning" if thinking else "content", "", True, ""
    pieces = _split(DSML, text)
    for place, (piece, tag) in enumerate(pieces):
        kind = tag.lastgroup if tag else None
        kind = next((k for k in ("call", "value") if tag and tag[k] is not None), kind)
        rest = "".join(later for later, _ in pieces[place:])
        if mode == "reasoning" and kind in ("section", "call") and not re.search(DSML_CALLED, rest):
            out.reasoning += rest if "<｜DSML｜invoke" in rest else ""  # a mention, unless the output ends here
            return out
        if mode == "value" and kind not in ("value_end", None):
            out.calls[-1][1][key] = value if string else loads(value)
            mode = "call"
        if tag is None or kind is None:
            if mode == "reasoning":
                out.reasoning += piece
            elif mode == "value":
                value += piece
            else:
                out.content += piece if mode == "content" else piece.lstrip()
            continue
        if mode == "call" and kind not in ("value", "value_end"):
            out.whole[-1] = True
            mode = "section"
        if kind == "think":
            mode = "reasoning" if piece == "<think>" else "content"
        elif kind in ("section", "call_end"):
            mode = "section"
        elif kind in ("close", "end"):
            mode = "content"
        elif kind == "call":
            out.calls.append((tag["name"], {}))
            out.whole.append(False)
            mode = "call"
        elif kind == "value":
            key, string, value, mode = tag["key"], tag["string"] == "true", "", "value"
        elif mode == "value":
            out.calls[-1][1][key] = value if string else loads(value)
            mode = "call"
    if mode == "value" and (string or value):
        out.calls[-1][1][key] = value if string else loads(value)
    elif mode == "call" and reason != "length":
        out.whole[-1] = bool(out.calls[-1][1])  # a bare opener says nothing of its arguments
    return out


# -- JSON in tags -----------------------------------------------------------------------------------------------------

HERMES = r"(?P<think></?think>)|(?P<call>\n?<tool_call>)|(?P<call_end></tool_call>)|(?P<end><\|im_end\|>)"


def hermes(text: str, schemas: Schemas, *, thinking: bool, reason: str) -> Read:
    """An object with `name` and `arguments` stands between two tags, or between the first and whatever comes."""
    out, mode = Read(), "reasoning" if thinking else "content"
    for piece, tag in _split(HERMES, text):
        if tag is not None:
            if tag.lastgroup == "think":
                mode = "reasoning" if piece == "<think>" else "content"
            else:
                mode = "call" if tag.lastgroup == "call" else "content"
        elif mode == "reasoning":
            out.reasoning += piece
        elif mode == "content":
            out.content += piece
        else:
            _hermes_call(piece.lstrip(), out)
    return out


def _hermes_call(body: str, out: Read) -> None:
    try:
        end = json.JSONDecoder().raw_decode(body)[1]
    except ValueError:
        cut = re.match(r'\{"name": *("(?:[^"\\]|\\.)*"), *"arguments": *(.*)', body, re.DOTALL)
        if cut is None:
            out.content += body
        else:
            out.whole.append(_is_json(cut[2]))
            out.calls.append((loads(cut[1]), loads(cut[2]) if out.whole[-1] else cut[2]))
        return
    call = loads(body[:end])
    out.calls.append((call["name"], call.get("arguments", {})))
    out.whole.append(True)
    out.content += body[end:].lstrip()


# -- tags whose values the schema types -------------------------------------------------------------------------------

QWEN3_CODER = (
    r"(?P<think><think>\n|\n</think>(?:\n\n)?)|(?P<section>\n{0,2}<tool_call>)|(?P<close></tool_call>)|(?P<call><function=(?P<name>[^>]*)>)"
    r"|(?P<call_end></function>)|(?P<value><parameter=(?P<key>[^>]*)>\n?)|(?P<value_end></parameter>)|(?P<end><\|im_end\|>)"
)


def qwen3_coder(text: str, schemas: Schemas, *, thinking: bool, reason: str) -> Read:
    """A value is what stands between its tags, but for one newline on either side; the tool's schema says its type."""
    out, mode, key, value, types = Read(), "reasoning" if thinking else "content", "", "", {"string"}
    for piece, tag in _split(QWEN3_CODER, text):
        kind = next((k for k in ("call", "value") if tag and tag[k] is not None), tag.lastgroup if tag else None)
        if tag is None:
            if mode == "reasoning":
                out.reasoning += piece
            elif mode == "value":
                value += piece
            else:
                out.content += piece if mode == "content" else piece.lstrip()
            continue
        if mode == "value":
            out.calls[-1][1][key] = _typed(value.removesuffix("\n"), types)
            mode = "call"
        if mode == "call" and kind not in ("value", "value_end"):
            out.whole[-1] = True
            mode = "section"
        if kind == "think":
            mode = "reasoning" if piece == "<think>\n" else "content"
        elif kind in ("section", "call_end"):
            mode = "section"
        elif kind in ("close", "end"):
            mode = "content"
        elif kind == "call":
            out.calls.append((tag["name"], {}))
            out.whole.append(False)
            mode = "call"
        elif kind == "value":
            key, value, mode = tag["key"], "", "value"
            schema = schemas.get(out.calls[-1][0], {})
            types = _types(schema.get("properties", {}).get(key, {}), schema)
    if mode == "value":
        if value or types == {"string"}:  # of what type the value would have been, nothing tells yet
            out.calls[-1][1][key] = _typed(value, types)
    elif mode == "call" and reason != "length":
        out.whole[-1] = bool(out.calls[-1][1])  # a bare opener says nothing of its arguments
    return out


def _typed(value: str, types: set[str]) -> Any:
    if types == {"string"}:
        return value
    try:
        read = loads(value)
    except ValueError:
        return value
    kinds = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array", int: "integer"}
    kind = kinds.get(type(read), "number")
    return read if kind in types or (kind == "integer" and "number" in types) else value


def _types(schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """Which types a value may have; without a schema, what it spells decides."""
    if not schema:
        return {"string", "any"}
    if "$ref" in schema:
        return _types(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        return {kind for option in schema["anyOf"] for kind in _types(option, root)}
    kinds = schema.get("type", "string")
    return {kinds} if isinstance(kinds, str) else set(kinds)


# -- harmony ----------------------------------------------------------------------------------------------------------

HARMONY = r"<\|(?P<mark>start|channel|constrain|message|end|call|return)\|>"


def harmony(text: str, schemas: Schemas, *, thinking: bool, reason: str) -> Read:
    """Messages: a header says the channel and who is meant, a body follows, and one of several marks ends it.

    What several messages say stands on lines of its own.
    """
    out, mode, header, body = Read(), "header", "", ""
    filled: set[str] = set()
    for piece, tag in [*_split(HARMONY, text), ("", None)]:
        mark = tag["mark"] if tag else ""
        if mode == "body" and (mark or not piece):
            _harmony_message(header, body, out, filled)
            header, body, mode = "", "", "between"
        if mark == "message":
            mode = "body"
        elif mark in ("end", "call", "return"):
            header, mode = "", "between"
        elif mark:
            header += f" {piece} "
            mode = "header"
        elif mode == "header":
            header += piece
        elif mode == "body":
            body += piece
        else:
            out.content += piece
    return out


def _harmony_message(header: str, body: str, out: Read, filled: set[str]) -> None:
    recipient = re.search(r"\bto=(\S+)", header)
    channel = re.search(r"<\|channel\|> *(\w+)", header)
    if recipient:
        out.whole.append(_is_json(body))
        out.calls.append((recipient[1].removeprefix("functions."), loads(body) if out.whole[-1] else body))
        return
    place = "reasoning" if channel and channel[1] == "analysis" else "content"
    if body:
        setattr(out, place, getattr(out, place) + ("\n" if place in filled else "") + body)
        filled.add(place)


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True
