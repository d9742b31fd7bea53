"""`families`: the families that a `response_template` may declare, with reader, writer and grammar.

It says where reasoning, content and calls stand, and not always which white space the model writes. That comes from
the chat template. If the template shows no such calls, there is a family with newlines around its markup, and one
without.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dovetail.formats.base import Format
from dovetail.formats.declared.bare_keys import BareKeyCalls
from dovetail.formats.declared.declared import Declaration, DeclaredFormat, JsonCalls, TagCalls
from dovetail.formats.declared.named_calls import NamedCalls
from dovetail.formats.derived.probes import Block
from dovetail.formats.families.pythonic import THINK, THINK_END, Pythonic, PythonicReader
from dovetail.formats.response_templates.anchors import BLANK, Refused, anchors, templates
from dovetail.formats.response_templates.blanks import SPACE, filled

#: The name of a family that a `response_template` declares.
NAME = "response_template"
CONTENT, CALLS = "content", "tool_calls"
#: The names that checkpoints give the field of reasoning.
REASONING = ("thinking", "reasoning_content", "reasoning")
_TOP = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD = set(
    "open open_pattern close close_pattern content content_args repeats join optional transform transform_each".split()
)
_PATH = re.compile(r"\{(?:content\.)?(\w+)\}")
#: The last tag before a call's name, if the name stands inside of it.
_OPEN_TAG = re.compile(rf"<[^<>{BLANK}]*\Z")
_TAG_NAME = re.compile(r"<([^\s=<>]+)")


class Parts(NamedTuple):
    """The fields of a message as templates.

    `reasoning`, `content`: the markup around; None: it has none. `calls`: the layouts of calls, or the markers around a
    list of Python calls. `ends`: what ends content and is not its markup.
    """

    reasoning: tuple[str, str] | None
    content: tuple[str, str]
    calls: tuple[Declaration, ...] | _PythonCalls
    ends: tuple[str, ...]


class _PythonCalls(NamedTuple):
    opener: str
    closer: str


def families(
    spec: Any,
    controls: Iterable[str],
    ends: Sequence[str],
    block: Block | None = None,
    shown: Callable[[Declaration], Declaration | None] = lambda _: None,
) -> Iterator[tuple[type[Format], str]]:
    """Each family, and what opens its calls.

    `controls`: the tokenizer's control tokens. `ends`: those that end a turn. `block`: the reasoning block that the
    chat template shows. `shown`: gives calls the white space that the chat template writes (`blanks.as_rendered`).
    Raises `Refused` for a response template that is not valid, and for one that no declaration expresses.
    """
    parts, controls = _parts(spec), tuple(controls)
    markup = "".join(map(str, (*parts.calls, parts.reasoning, parts.content)))
    all_ends = dict.fromkeys((*ends, *(end for end in parts.ends if end in controls)))
    ends = tuple(end for end in all_ends if end not in markup)
    if not ends:
        raise Refused("nothing ends its turns")
    if not all(_bare(mark) in ("", *controls) for mark in parts.content):
        raise Refused(
            f"its content stands between {' and '.join(map(_bare, parts.content))}, which are no control tokens"
        )
    if block is not None and parts.reasoning is not None:
        shown_tags, declared = (block.think, block.think_end.strip()), tuple(map(_bare, parts.reasoning))
        if shown_tags != declared:
            raise Refused(f"it puts reasoning in {declared}, and the chat template in {shown_tags}")
    if isinstance(parts.calls, _PythonCalls):
        if parts.reasoning is not None and tuple(map(_bare, parts.reasoning)) != (THINK, THINK_END):
            raise Refused(f"beside Python calls, reasoning is read between {THINK} and {THINK_END} only")
        yield _python_family(parts.calls, ends, reasons=parts.reasoning is not None), parts.calls.opener
        return
    # No grammar has white space between a marker that ends content and calls.
    layouts = [replace(each, after_content="") if any(parts.content) else each for each in parts.calls]  # type: ignore[type-var]
    opening = _bare((layouts[0].section + layouts[0].call).partition("{")[0])
    known = shown(layouts[0])
    for blank in ("\n", "") if known is None else ("\n",):
        calls = tuple(filled(each, blank) for each in layouts)
        yield (
            _family(parts, calls if known is None else (known, *calls[1:]), blank, controls, ends, block),
            opening,
        )


def _parts(spec: Any) -> Parts:
    if not isinstance(spec, Mapping):
        raise Refused("it is not an object")
    if (version := spec.get("version", 1)) != 1:
        raise Refused(f"its version is {version!r:.40}, and only 1 is known")
    if unknown := spec.keys() - _TOP:
        raise Refused(f"it has unknown keys: {', '.join(sorted(map(str, unknown)))}")
    if not isinstance(spec.get("defaults", {}), Mapping):
        raise Refused("its defaults are not an object")
    fields = spec.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise Refused("it has no fields")
    if ("start_anchor" in spec) == ("start_anchor_pattern" in spec):
        raise Refused("it needs start_anchor or start_anchor_pattern")
    for name, field in fields.items():
        if not isinstance(field, Mapping):
            raise Refused(f"its field {name} is not an object")
        if unknown := field.keys() - _FIELD:
            raise Refused(f"its field {name} has unknown keys: {', '.join(sorted(map(str, unknown)))}")
        if name not in (*REASONING, CONTENT, CALLS):
            raise Refused(f"its field {name} is no part of an answer")
    implicit = [name for name, field in fields.items() if not {"open", "open_pattern"} & field.keys()]
    if len(implicit) > 1 or implicit not in ([], [CONTENT]):
        raise Refused(f"nothing opens its field {next(name for name in implicit if name != CONTENT)}")
    reasoning = [name for name in REASONING if name in fields]
    if len(reasoning) > 1:
        raise Refused(f"it has two fields for reasoning: {' and '.join(reasoning)}")
    around = _of_field(reasoning[0], _around, fields[reasoning[0]]) if reasoning else None
    content, ends = _of_field(CONTENT, _content, fields.get(CONTENT, {}))
    if CALLS not in fields:
        raise Refused("it has no field for calls")
    return Parts(around, content, _of_field(CALLS, _calls, fields[CALLS]), ends)


def _of_field(name: str, read: Callable[[Mapping[str, Any]], Any], field: Mapping[str, Any]) -> Any:
    try:
        return read(field)
    except Refused as error:
        raise Refused(f"its field {name}: {error}") from None


def _around(field: Mapping[str, Any]) -> tuple[str, str]:
    """The markup around a text."""
    if field.get("content", "text") != "text" or field.get("transform") is not None:
        raise Refused("it must be text")
    openers, closers = _edges(field)
    if len({*map(_bare, openers)}) != 1 or not closers:
        raise Refused("one markup must open it, and one close it")
    return openers[0], closers[0]


def _edges(field: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What opens a field and what closes it, without white space that may stand outside."""
    openers = [each.lstrip(BLANK) for each in anchors(field, "open") if _bare(each)]
    return openers, [each.rstrip(BLANK) for each in anchors(field, "close") if _bare(each)]


def _content(field: Mapping[str, Any]) -> tuple[tuple[str, str], tuple[str, ...]]:
    """The markup around content, and what ends it without being its markup."""
    if {"open", "open_pattern"} & field.keys():
        return _around(field), ()
    if field.get("content", "text") != "text" or field.get("transform") is not None:
        raise Refused("it must be text")
    return ("", ""), tuple(map(_bare, anchors(field, "close")))


# -- calls ------------------------------------------------------------------------------------------------------------


class _Transform(NamedTuple):
    """Where a call's name and arguments come from: keys of an object, or `name` alone if `content` is the arguments."""

    name: str
    arguments: str | None


def _calls(field: Mapping[str, Any]) -> tuple[Declaration, ...] | _PythonCalls:
    openers, closers = _edges(field)
    if not openers:
        raise Refused("nothing opens a call")
    kind, arguments = str(field.get("content", "text")), field.get("content_args", {})
    if not isinstance(arguments, Mapping):
        raise Refused("content_args must be an object")
    if kind == "python-call-list":
        if len(openers) > 1 or len(closers) != 1:
            raise Refused("one marker must open a list, and one close it")
        return _PythonCalls(_bare(openers[0]), _bare(closers[0]))
    if kind not in ("json", "xml-inline"):
        raise Refused(f"no declaration reads calls of the kind {kind!r:.40}")
    transform = _transform(field)
    if kind == "json" and transform.arguments is not None:
        if arguments.get("string_delims") or arguments.get("unquoted_keys"):
            raise Refused("no declaration reads a call that is not JSON")
        listed = bool(field.get("transform_each"))
        around = itertools.product(openers, closers or [""])
        return tuple(_json_calls(*each, *transform, listed=listed) for each in around)
    slot = f"{{{transform.name}}}"
    if transform.arguments is not None or any(slot not in opener for opener in openers):
        raise Refused("its name must stand in what opens it")
    opened, closed = _edges_of_one([opener.replace(slot, "{name}") for opener in openers], closers or [""])
    if kind == "json":
        return (_named_calls(opened, closed, arguments),)
    return (_tag_calls(opened, closed, arguments.get("tag_pattern")),)


def _transform(field: Mapping[str, Any]) -> _Transform:
    shape = field.get("transform")
    function = shape.get("function") if isinstance(shape, Mapping) else None
    if function == "{content}":
        return _Transform("name", "arguments")
    if isinstance(function, Mapping) and function.keys() == {"name", "arguments"}:
        name, arguments = (_PATH.fullmatch(str(function[key])) for key in ("name", "arguments"))
        if name is not None and function["arguments"] == "{content}":
            return _Transform(name[1], None)
        if name is not None and arguments is not None:
            return _Transform(name[1], arguments[1])
    raise Refused("its transform does not say which are a call's name and arguments")


class _Edge(NamedTuple):
    """The markup at one side of a call, and of a section that has several calls; "" if each call has one."""

    call: str
    section: str = ""


def _edges_of_one(openers: list[str], closers: list[str]) -> tuple[_Edge, _Edge]:
    """The markup around a call. Alternatives may differ in a section's markup only, which is optional."""
    opener, *shorter_opener = openers
    closer, *shorter_closer = closers
    if not all(map(opener.endswith, shorter_opener)) or not all(map(closer.startswith, shorter_closer)):
        raise Refused("only calls that are JSON may have alternative markup")
    if not shorter_opener:  # each call has a section
        return _Edge(opener), _Edge(closer)
    begin, end = shorter_opener[0], (shorter_closer or closers)[0]
    return _Edge(begin, opener.removesuffix(begin)), _Edge(end, closer.removeprefix(end))


def _json_calls(opener: str, closer: str, name: str, arguments: str | None, *, listed: bool) -> Declaration:
    call = f'{{"{name}":{SPACE}"{{name}}",{SPACE}"{arguments}":{SPACE}{{arguments}}}}'
    if listed:
        return JsonCalls(f"{opener}[{BLANK}{{calls}}{BLANK}]{closer}", call, f",{SPACE}", BLANK)
    return JsonCalls(f"{opener}{BLANK}{{call}}{BLANK}{closer}", call, between=BLANK, after_content=BLANK)


def _named_calls(opened: _Edge, closed: _Edge, args: Mapping[str, Any]) -> Declaration:
    if not args.get("string_delims") and not args.get("unquoted_keys"):
        section = f"{opened.section}{{calls}}{BLANK if closed.section else ''}{closed.section}"
        return NamedCalls(section, f"{opened.call}{{arguments}}{BLANK}{closed.call}", BLANK, BLANK)
    match args.get("string_delims"):
        case [[str(begin), str(end)]] if begin and end:
            string = f"{begin}{{text}}{end}"
        case _:
            raise Refused("its strings need one pair of markers")
    before, _, after = opened.call.partition("{name}")
    section = _bare(before)[: _bare(before).rfind(">") + 1]
    call = f"{_bare(before)[len(section) :]}{{name}}{after}{{arguments}}"
    return BareKeyCalls(f"{section}{{call}}{closed.call}", call, string, BLANK, BLANK)


def _tag_calls(opened: _Edge, closed: _Edge, tag_pattern: Any) -> Declaration:
    parameters = templates(tag_pattern, "tag_pattern")
    if len(parameters) != 1 or not all(slot in parameters[0] for slot in ("{key}", "{value}")):
        raise Refused("tag_pattern must have a key and a value, and no alternatives")
    before, after = opened.call.split("{name}")
    if opened.section:
        section = f"{opened.section}{BLANK}{{calls}}{closed.section}"
        call = f"{before}{{name}}{after}{BLANK}{{parameters}}{closed.call}{BLANK}"
        return TagCalls(section, call, f"{parameters[0]}{BLANK}", BLANK, BLANK)
    tag = _OPEN_TAG.search(before)
    if tag is None:
        call = f"{{name}}{after}{BLANK}{{parameters}}"
        return TagCalls(f"{before}{{call}}{closed.call}", call, f"{parameters[0]}{BLANK}", BLANK, BLANK)
    # The pattern of the parameters skips the end of a call, so that `close` need not have it.
    call_end = f"</{name[1]}>" if (name := _TAG_NAME.match(tag[0])) is not None else ""
    call = f"{tag[0]}{{name}}{after}{BLANK}{{parameters}}{call_end}{BLANK}"
    section = (
        f"{before[: tag.start()]}{BLANK}{{call}}{closed.call.rpartition(call_end)[2] if call_end else closed.call}"
    )
    return TagCalls(section, call, f"{parameters[0]}{BLANK}", BLANK, BLANK)


# -- a family ---------------------------------------------------------------------------------------------------------


def _family(
    parts: Parts,
    calls: tuple[Declaration, ...],
    blank: str,
    controls: tuple[str, ...],
    ends: tuple[str, ...],
    block: Block | None,
) -> type[Format]:
    attributes: dict[str, Any] = {
        "name": NAME,
        "calls": calls[0],
        "other_calls": calls[1:],
        "reasoning": "none",
        "answer": "{content}".join(part.replace(BLANK, "") for part in parts.content),
        "end_of_turn": ends,
    }
    if parts.reasoning is not None:
        attributes |= {"reasoning": "written", "reasoning_block": _block(parts.reasoning, blank, block)}
    texts = "".join(map(str, (*calls, *parts.content, attributes.get("reasoning_block", ""))))
    attributes["controls"] = tuple(literal for literal in controls if literal in texts and literal not in ends)
    return type("ResponseTemplate", (DeclaredFormat,), attributes)


def _block(around: tuple[str, str], blank: str, block: Block | None) -> str:
    opener, closer = map(_bare, around)
    if block is None:
        after = "\n" if around[0].endswith("\n") else blank
        return f"{opener}{after}{{reasoning}}{blank}{closer}{2 * blank}"
    newlines = "\n" * block.after_think, "\n" * block.after_think_end
    return f"{opener}{newlines[0]}{{reasoning}}{block.think_end}{newlines[1]}"


def _python_family(around: _PythonCalls, ends: tuple[str, ...], *, reasons: bool) -> type[Format]:
    own = {
        "controls": (*around, THINK, THINK_END, *ends),
        "ends": (around.closer, *ends),
        "around_calls": tuple(around),
        "tag": "",
        "openers": (around.opener,),
    }
    attributes = {
        "name": NAME,
        "reasoning": "written" if reasons else "none",
        "reader_type": type("ResponseTemplateReader", (PythonicReader,), own),
        "end_of_turn": ends,
        "always_marked": True,
    }
    return type("ResponseTemplate", (Pythonic,), attributes)


def _bare(template: str) -> str:
    return template.replace(BLANK, "").strip()
