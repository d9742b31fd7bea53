"""`written`: the response templates that a format's answers may have, from the layout of its calls.

The layout comes from the chat template by differencing, or from the declaration of the family. Where two layouts are
known, `roundtrip` tells which one the chat template has.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.errors import DovetailError
from dovetail.events import Call, Message
from dovetail.formats.answers.call_envelope import INDEX, NAME
from dovetail.formats.base import Format
from dovetail.formats.declared.bare_keys import BareKeyCalls
from dovetail.formats.declared.declaration_checks import SLOT
from dovetail.formats.declared.declared import Declaration, DeclaredFormat, JsonCalls, TagCalls
from dovetail.formats.declared.named_calls import KeyedCalls, NamedCalls
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.formats.derived.layouts import NoLayoutError, layout
from dovetail.formats.derived.proof import TOOLS
from dovetail.formats.derived.sample_answers import CONTENT as CONTENT_WORD
from dovetail.formats.derived.sample_answers import REASONING as REASONING_WORD
from dovetail.formats.derived.sample_answers import SampleAnswers, SampleCall, atoms_of
from dovetail.formats.families.pythonic import Pythonic
from dovetail.formats.response_templates.families import CALLS, CONTENT, REASONING
from dovetail.formats.response_templates.roundtrip import USER, Answers, rendering, sent

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")
_NAME = r"[^\s<>\[\]{}(),:]+?"
_SPACE = r"\s*"
_FUNCTION = {"type": "function"}


class Inexpressible(ValueError):
    """A layout for which response templates have no words. The message says why, for people."""


def written(fmt: Format) -> Iterator[dict[str, Any]]:
    """Response templates, the likeliest one first. Raises `Inexpressible` if there is none."""
    family = fmt.family if isinstance(fmt, JinjaFormat) else fmt
    made, reasons = [], []
    if isinstance(family, Pythonic):
        made.append(_response_template(fmt, _python_calls(family, _ends(fmt))))
    for calls in _layouts(fmt, family):
        try:
            made.append(_response_template(fmt, _calls(calls, _ends(fmt), _think_end(fmt))))
        except Inexpressible as error:
            reasons.append(str(error))
    if not made:
        raise Inexpressible(reasons[0] if reasons else f"no declaration has the layout of the calls of {family.name}")
    yield from made


def _layouts(fmt: Format, family: Format) -> Iterator[Declaration]:
    if isinstance(fmt, JinjaFormat) and fmt.derived.derivation.layout is not None:
        yield fmt.derived.derivation.layout.calls
    if isinstance(family, DeclaredFormat):
        yield family.calls
        yield from family.other_calls
    elif not isinstance(family, Pythonic):
        with contextlib.suppress(DovetailError, NoLayoutError, ValueError, LookupError):
            yield layout(_WrittenAnswers(family), both=False).calls


class _WrittenAnswers(SampleAnswers):
    """The same answers as the family writes them. An id that is made of the name and a number becomes slots."""

    def __init__(self, family: Format) -> None:
        self._family = family
        self._atoms = atoms_of((*family.reader_type.controls, *family.end_of_turn))

    def calling(self, *calls: SampleCall, content: str = "") -> str | None:
        call_id = self._family.history_rules.call_id
        ids = [call.id if call_id is None else call_id(call.name, i) for i, call in enumerate(calls)]
        sent = [Call(own, call.name, json.dumps(call.arguments)) for own, call in zip(ids, calls, strict=True)]
        *segments, _ = self._family.write(Message(calls=tuple(sent)), thinking=False).segments
        slotted = self._slotted("".join(segment.text for segment in segments), calls)
        return slotted and re.sub(rf"({NAME}:)\d+", rf"\1{INDEX}", slotted)


def _response_template(fmt: Format, calls: Mapping[str, Any]) -> dict[str, Any]:
    answers = Answers(fmt)
    text, _ = answers.text(Message(CONTENT_WORD))
    before, _, after = text.partition(CONTENT_WORD)
    fields: dict[str, Any] = {}
    think, think_end = _thinking(fmt, answers, before)
    if think_end:
        opener = f"{_loosely(think)}|{_SPACE}(?={_loosely(think_end)})"
        opened = {"open_pattern": opener} if think_end in before and think not in before else {"open": think}
        fields[REASONING[0]] = {**opened, "close": think_end, "content": "text"}
        before = before.rpartition(think_end)[2]
    fields[CALLS] = calls
    fields[CONTENT] = _content(fmt, before.strip(), after) | {"content": "text"}
    anchors = _anchors(fmt, think)
    return {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": anchors[0] if len(anchors) == 1 else anchors,
        "fields": fields,
    }


def _content(fmt: Format, before: str, after: str) -> dict[str, Any]:
    """The markup of content, which the texts `before` and `after` it show."""
    ends = _ends(fmt)
    if not before:
        return {"close_pattern": _SPACE + ends}
    first = "" if any(control in before for control in fmt.reader_type.controls) else f"(?:^|(?<={_think_end(fmt)}))"
    at = min((after.find(end) for end in fmt.end_of_turn if end in after), default=len(after))
    closer = after[:at].strip()
    return {
        "open_pattern": (first if _think_end(fmt) else "^" * bool(first)) + _SPACE + _loosely(before),
        "close_pattern": _loosely(closer) if closer else _SPACE + ends,
    }


def _thinking(fmt: Format, answers: Answers, before_content: str) -> tuple[str, str]:
    """The markup around reasoning; "" and "" if there is none.

    `before_content`: what stands before content without reasoning.
    """
    if fmt.reasoning == "none":
        return "", ""
    tags = fmt.reader_type.think.strip(), fmt.reader_type.think_end.strip()
    with contextlib.suppress(DovetailError):
        text, prompt = answers.text(Message(CONTENT_WORD, REASONING_WORD))
        opener, found, rest = text.partition(REASONING_WORD)
        between = rest.partition(CONTENT_WORD)[0]
        if found and tags[0] not in prompt + opener and before_content and between.endswith(before_content):
            return opener.strip(), between.removesuffix(before_content).strip()
    return tags


def _anchors(fmt: Format, think: str) -> list[str]:
    """What stands directly before an answer, after a question and after a result."""
    call = Call("call00000", "get_weather", "{}")
    result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": USER["content"]}
    render = rendering(fmt)
    found = []
    for more in ((), (sent(Message(calls=(call,))), result)):
        try:
            opened = render([USER, *more], TOOLS, True)
            answered = render([USER, *more, sent(Message(CONTENT_WORD))], TOOLS, False).text
        except DovetailError:
            continue
        header = opened.text.rpartition(USER["content"])[2]
        header = header.partition(think)[0].rstrip() if think and think in header else header
        controls = {*opened.pieces[1::2]}
        begins = sorted(match.start() for each in controls for match in re.finditer(re.escape(each), header))
        header = next((header[at:] for at in reversed(begins) if header[at:] not in think), header)
        while header and header not in answered:  # the rest is written for answers that are open
            header = header[:-1]
        found.append(header.rstrip(" "))
    return list(dict.fromkeys(filter(str.strip, found))) or ["\n"]


def _ends(fmt: Format) -> str:
    """A regex of what ends a turn."""
    return f"(?:{'|'.join(map(_escaped, fmt.end_of_turn))})"


def _think_end(fmt: Format) -> str:
    return "" if fmt.reasoning == "none" else _escaped(fmt.reader_type.think_end.strip())


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", r"\n").replace("\t", r"\t")


def _loosely(text: str) -> str:
    """A regex of markup, with any white space where it has some."""
    return _SPACE.join(_escaped(word) for word in re.split(r"\s+", text))


def _opened(opener: str, think_end: str, first: str) -> dict[str, Any]:
    """What opens calls; `first`: a regex of how they begin, if no markup opens them."""
    if opener.strip():
        return {"open_pattern": _SPACE + _loosely(opener.strip())}
    begin = f"(?:^|(?<={think_end}))" if think_end else "^"
    return {"open_pattern": f"{begin}{_SPACE}(?={first})"}


def _closed(end: str, section_end: str, ends: str, again: str = "") -> dict[str, Any]:
    """What closes a call. `again`: a regex of what opens the next one, if nothing ends a call."""
    end, section_end = end.strip(), section_end.strip()
    if end and section_end:
        return {"close_pattern": f"{_loosely(end)}(?:{_SPACE}{_loosely(section_end)})?"}
    if end or section_end:
        return {"close": end or section_end}
    return {"close_pattern": f"(?={_SPACE}{again})|{_SPACE}{ends}" if again else _SPACE + ends}


def _calls(calls: Declaration, ends: str, think_end: str) -> dict[str, Any]:
    match calls:
        case KeyedCalls():
            raise Inexpressible("a call's name is the key of its object, and no transform reads keys")
        case JsonCalls():
            return _json_calls(calls, ends, think_end)
        case NamedCalls() | BareKeyCalls():
            return _named_calls(calls, ends)
        case TagCalls():
            return _tag_calls(calls, ends)
    raise Inexpressible(f"no kind of content has the layout of {type(calls).__name__}")


def _json_calls(calls: JsonCalls, ends: str, think_end: str) -> dict[str, Any]:
    opener, closer = SLOT.split(calls.section)[::2]
    shown = calls.call.replace("{arguments}", '"{arguments}"')
    try:
        paths = {value: path for path, value in _paths(json.loads(shown))}
    except ValueError:
        raise Inexpressible(f"a call is more than a JSON object: {calls.call!r}") from None
    if not {"{name}", "{arguments}"} <= paths.keys():
        raise Inexpressible(f"a call has neither name nor arguments as members: {calls.call!r}")
    name, arguments = paths["{name}"], paths["{arguments}"]
    if calls.in_list:
        opener, closer = opener.rstrip()[:-1], closer.lstrip()[1:]
        function = {"name": f"{{{name}}}", "arguments": f"{{{arguments}}}"}
        listed = {"transform_each": True, "transform": _FUNCTION | {"function": function}}
        first = rf'\[\s*\{{\s*"{name.split(".")[0]}"' if calls.call.startswith(f'{{"{name}') else r"\[\s*\{"
        return _opened(opener, think_end, first) | _closed("", closer, ends) | {"content": "json"} | listed
    function = {"name": f"{{content.{name}}}", "arguments": f"{{content.{arguments}}}"}
    first = rf'\{{\s*"{next(iter(json.loads(shown)))}"'
    return (
        _opened(opener, think_end, first)
        | _closed("", closer, ends, _loosely(opener.strip()))
        | {"repeats": True, "content": "json", "transform": _FUNCTION | {"function": function}}
    )


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all members of an object that are no objects."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _paths(inner, f"{path}.{key}" if path else key)


def _named_calls(calls: NamedCalls | BareKeyCalls, ends: str) -> dict[str, Any]:
    section, section_end = SLOT.split(calls.section)[::2]
    pieces = SLOT.split(calls.call)
    slots = {"name": rf"(?P<name>{_NAME})", "id": r"[^\s<>\[\]]*?", "index": r"\d+"}
    header = "".join(_loosely(piece) if i % 2 == 0 else slots[piece] for i, piece in enumerate(pieces[:-2]))
    more: dict[str, Any] = {}
    if isinstance(calls, BareKeyCalls):
        header = header.replace(_NAME, r"[^\s{}]+")
        more = {"content_args": {"unquoted_keys": True, "string_delims": [calls.string.split("{text}")]}}
    return {
        **_in_section(section, header, each="{call}" in calls.section),
        **_closed(pieces[-1], section_end, ends, _loosely(section.strip() or pieces[0].strip())),
        "repeats": True,
        "content": "json",
        **more,
        "transform": _FUNCTION | {"function": {"name": "{name}", "arguments": "{content}"}},
    }


def _in_section(section: str, header: str, *, each: bool) -> dict[str, Any]:
    """What opens a call with `header`. `each`: whether each call has a section, or only the first one."""
    before = f"{_loosely(section.strip())}{_SPACE}" if section.strip() else ""
    return {"open_pattern": _SPACE + (before if each or not before else f"(?:{before})?") + header}


def _tag_calls(calls: TagCalls, ends: str) -> dict[str, Any]:
    section, section_end = SLOT.split(calls.section)[::2]
    before, _, between, _, after = SLOT.split(calls.call)
    name = r'(?P<name>[^<>\s"]+)'
    call = f"{_loosely(before.strip())}{name}{_loosely(between.strip())}"
    opened = _in_section(section, call, each="{call}" in calls.section)
    slots = {
        "key": r'(?P<key>[^<>"]+?)',
        "value": r"(?P<value>.*?)",
        "is_string": "(?:true|false)",
    }
    pieces = SLOT.split(calls.parameter.strip())
    pattern = "".join(
        re.sub(r"(?:\\n)+", r"\\n?", _escaped(piece)) if i % 2 == 0 else slots[piece] for i, piece in enumerate(pieces)
    )
    return {
        **opened,
        **_closed(after, section_end, ends),
        "repeats": True,
        "content": "xml-inline",
        "content_args": {"tag_pattern": pattern},
        "transform": _FUNCTION | {"function": {"name": "{name}", "arguments": "{content}"}},
    }


def _python_calls(family: Pythonic, ends: str) -> dict[str, Any]:
    opener, closer = family.reader_type.around_calls
    around: Mapping[str, Any] = {"open_pattern": _SPACE + _escaped(opener), "close": closer}
    if not family.always_marked:
        bare = r"^\s*(?=\[[A-Za-z_][\w.-]*\()"
        around = {
            "open_pattern": rf"{_SPACE}{_escaped(opener)}|{bare}",
            "close_pattern": rf"{_escaped(closer)}|{_SPACE}{ends}",
        }
    function = {"name": "{name}", "arguments": "{arguments}"}
    return {
        **around,
        "content": "python-call-list",
        "transform_each": True,
        "transform": _FUNCTION | {"function": function},
    }
