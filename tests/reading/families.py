"""Samples for the laws of reading, for every registered format: tools, messages, outputs, and damaged outputs.

Nothing here knows a family: its markup is what its reader declares and what `write` puts around the words of a sample.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, Event, Message
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k3 import KimiK3Reader
from dovetail.formats.registry import FAMILIES
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.tags import TagReader
from dovetail.tokens import Tokenizer
from tests.reading.declared_formats import DECLARED

#: The formats that write prompts themselves.
RENDERING = [name for name, family in FAMILIES.items() if family.renders()]

PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}, "name": {"type": "string"}},
}
PARAMETERS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"},
            "alerts": {"type": "boolean"},
        },
        "required": ["city"],
    },
    "ns.get-time": None,
    "edit_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "mode": {"type": ["string", "integer"]},
        },
    },
    "pin-it": {
        "type": "object",
        "properties": {
            "where": {"$ref": "#/$defs/place"},
            "path": {"type": "array", "items": {"$ref": "#/$defs/place"}},
            "zoom": {"type": "number"},
            "weight": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "$defs": {"place": PLACE},
    },
    "ping": {"type": "object", "properties": {}},
}


def _tool(name: str, parameters: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"What {name} does"}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


TOOLS = [_tool(name, parameters) for name, parameters in PARAMETERS.items()]

# -- a family's markup ------------------------------------------------------------------------------------------------

SAMPLE = Message(
    "CONTENT",
    "REASONING",
    (
        Call("functions.get_weather:0", "get_weather", '{"city":"VALUE","days":3}'),
        Call("functions.edit_file:1", "edit_file", '{"path":"VALUE","lines":[3]}'),
    ),
)
_WORDS = re.compile(r"CONTENT|REASONING|VALUE|get_weather|edit_file|city|days|path|lines|\b3\b|\[3\]")
_PIECE = re.compile(r"[ \n]*[<\[][^<>\[\]]*[>\]]?|[^<\[]+")


#: The complete example of docs/adding-a-family.md, which is tried like a registered format.
EXAMPLE = "acme"
NAMES = (*FAMILIES, EXAMPLE, *DECLARED)


@functools.cache
def format_of(name: str) -> Format:
    if name in DECLARED:
        return DECLARED[name]()
    return _example() if name == EXAMPLE else dovetail.format(name)


def _example() -> Format:
    page = (Path(__file__).parents[2] / "docs/adding-a-family.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    defined: dict[str, Any] = {}
    exec(code[1], defined)
    example: Format = defined["Acme"]()
    return example


@functools.cache
def leading() -> frozenset[str]:
    """One family for each reader: the others only declare other markers for it.

    A family of the tests is left out if a published one has its reader, or one that is made of it.
    """
    first: dict[type, str] = {}
    made_of: set[type] = set()
    for name in NAMES:
        kinds = [kind for kind in format_of(name).reader_type.__mro__ if kind.__module__.startswith("dovetail.")]
        if name in FAMILIES:
            made_of.update(kinds)
        elif kinds[0] in made_of:
            continue
        first.setdefault(kinds[0], name)
    return frozenset(first.values())


#: Families that make one call a turn.
ONE_CALL = ("harmony", "gigachat3")


def opens_in_text(name: str) -> bool:
    """Whether the family's calls begin with a marker that is ordinary text."""
    reader = format_of(name).reader_type
    openers = getattr(reader, "openers", ())
    return bool(openers) and openers[0] in reader.text_openers


def opens_answers(name: str) -> bool:
    """Whether the family, or its models, may write markup around content."""
    reader = format_of(name).reader_type
    return bool(getattr(reader, "answer", "") or getattr(reader, "wrapper", ""))


@functools.cache
def controls(name: str) -> tuple[str, ...]:
    """The literals of all control tokens that the family's readers and writers use."""
    fmt = format_of(name)
    written = (s.text for s in fmt.write(SAMPLE).segments if s.control)
    kind = fmt.reader_type
    return tuple(dict.fromkeys((*kind.controls, *kind.begin_of_text, *fmt.end_of_turn, *written)))


@functools.cache
def markers(name: str) -> tuple[str, ...]:
    """Every literal that means something to the family: what its reader declares, and the tags of a written sample."""
    fmt = format_of(name)
    found = list(controls(name))
    for kind in fmt.reader_type.__mro__:
        for value in (value for key, value in vars(kind).items() if not key.endswith("__")):
            found += [value] if isinstance(value, str) else [*value] if isinstance(value, tuple | Mapping) else ()
    for output in (*sample_outputs(name), *sample_outputs(name, thinking=False)):
        for piece in _WORDS.split(output):
            found += _PIECE.findall(piece)
    return tuple(dict.fromkeys(m for m in found if isinstance(m, str) and re.search(r"[^\w\s.]", m)))


def sample_outputs(name: str, *, thinking: bool = True) -> list[str]:
    """The sample in each way in which the family writes it: reasoning if the family has it, content, two calls."""
    reasoning = SAMPLE.reasoning if reasons(name, thinking) else ""
    message = Message(SAMPLE.content, reasoning, SAMPLE.calls)
    return [prompt.text for prompt in format_of(name).forms(message, thinking=thinking)]


@functools.cache
def _mark(name: str) -> re.Pattern[str]:
    """What a text must not hold to be text: a marker of three characters or more."""
    return re.compile("|".join(re.escape(m.strip()) for m in markers(name) if len(m.strip()) > 2))


@functools.cache
def _ordinary_mark(name: str) -> re.Pattern[str]:
    """The same if control tokens are known by their ids: only markers without control tokens."""
    literals = [m.strip() for m in markers(name) if len(m.strip()) > 2 and not any(c in m for c in controls(name))]
    return re.compile("|".join(map(re.escape, literals)) or "(?!)")


class PieceTokenizer(Tokenizer):
    """Bytes, some longer pieces of markup, and control tokens: ids without a trained vocabulary."""

    def __init__(self, control: Iterable[str], pieces: Iterable[str] = ()) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in pieces]
        self._find = re.compile(
            b"|".join(map(re.escape, sorted(self._pieces[256:], key=len, reverse=True))) + b"|.", 16
        )
        self._id = {piece: token for token, piece in enumerate(self._pieces)}
        self.control = {literal: len(self._pieces) + i for i, literal in enumerate(control)}
        self.vocab_size = len(self._pieces) + len(self.control)

    def _encode(self, text: str) -> list[int]:
        return [self._id[piece] for piece in self._find.findall(text.encode())]

    def _bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""


@functools.cache
def tokenizer_of(name: str, *, with_controls: bool = True) -> Tokenizer:
    """A tokenizer whose ordinary tokens end in the middle of markers, with the family's control tokens or none."""
    halves = {half for m in markers(name) for half in (m[: len(m) // 2], m[len(m) // 2 :]) if len(half) > 1}
    known = (*controls(name), "<|unheard|>") if with_controls else ()
    return PieceTokenizer(known, (*sorted(halves), "ing", " the", '": "', "}\n"))


# -- well-formed messages and outputs ---------------------------------------------------------------------------------

_BITS = ("<", ">", "</", "{", "}", "[", "]", '"', "'", "\\", "\n", "\n\n", " ", "&", "=", ":", ",", "|", "｜", "é漢🙂")
_texts = st.one_of(
    st.lists(st.sampled_from((*_BITS, "hello", "null", "3", '"}', '\\"]', '"\n')), max_size=8).map("".join),
    st.text(max_size=12),
)


@functools.cache
def texts(name: str, *, ids: bool = False) -> st.SearchStrategy[str]:
    """Text that holds no marker of the family; with `ids`, it may spell those that are control tokens."""
    spelled = st.lists(_texts | st.sampled_from(controls(name)), max_size=4).map("".join)
    mark = (_ordinary_mark if ids else _mark)(name)
    return (spelled if ids else _texts).filter(lambda text: not mark.search(text))


_numbers = st.sampled_from(("0", "-0.0", "9007199254740993.10", "1E400", "12345678901234567890123", "2.50"))
_integers = st.integers().map(str)


def _object(parts: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in parts) + "}"


def _objects(**members: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON texts of objects with some of these members, which are JSON texts, in any order."""
    keys = st.lists(st.sampled_from(sorted(members)), unique=True)
    return keys.flatmap(
        lambda drawn: st.tuples(*(members[key] for key in drawn)).map(
            lambda values: _object([*zip(drawn, values, strict=True)])
        )
    )


def _array(values: list[str]) -> str:
    return f"[{','.join(values)}]"


@functools.cache
def arguments(name: str, *, ids: bool = False) -> dict[str, st.SearchStrategy[str]]:
    """For every tool, JSON texts of arguments that its schema allows and that have one reading only.

    A string where a number or null may stand as well is a word, since most families write both without quotes.
    """
    booleans, null = st.sampled_from(("true", "false")), st.just("null")
    text = texts(name, ids=ids)
    strings = st.tuples(text, st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))
    words = st.sampled_from(("Paris", "a < b", "é", "two words", "nullable", "line\nline")).map(json.dumps)
    places = _objects(lat=_numbers, lon=_numbers, name=strings)
    return {
        "get_weather": _objects(
            city=strings, unit=st.sampled_from(('"celsius"', '"fahrenheit"')), days=_integers, alerts=booleans
        ),
        "ns.get-time": st.just("{}"),
        "edit_file": _objects(
            path=strings,
            text=words | null,
            lines=st.lists(_integers, max_size=3).map(_array),
            mode=words | _integers,
        ),
        "pin-it": _objects(
            where=places, path=st.lists(places, max_size=2).map(_array), zoom=_numbers, weight=_numbers | null
        ),
        "ping": st.just("{}"),
    }


@functools.cache
def messages(name: str, *, reasons: bool, ids: bool = False) -> st.SearchStrategy[Message]:
    """Messages that the model could have meant; with reasoning if it `reasons`."""
    per_tool = arguments(name, ids=ids)
    called = st.sampled_from(sorted(per_tool)).flatmap(lambda tool: st.tuples(st.just(tool), per_tool[tool]))
    return st.builds(
        lambda content, reasoning, calls: Message(
            content, reasoning, tuple(Call(f"functions.{n}:{i}", n, a) for i, (n, a) in enumerate(calls))
        ),
        texts(name, ids=ids),
        texts(name, ids=ids) if reasons else st.just(""),
        st.lists(called, max_size=3),
    )


def without_begun_marker(text: str, message: Message) -> str:
    """`text`, which was read as `message`, without the beginning of a marker in which it was cut off."""
    begun = next((defect.detail for defect in message.defects if defect.kind == "truncated_marker"), "")
    assert text.endswith(begun)
    return text.removesuffix(begun)


def reasons(name: str, thinking: bool) -> bool:
    """Whether a message that is written with `thinking` may have reasoning."""
    return thinking and format_of(name).reasoning != "none"


def opened(name: str, thinking: bool) -> bool:
    """Whether the prompt for such a message left a reasoning block open."""
    return thinking and format_of(name).reasoning == "opened"


@functools.cache
def written(name: str) -> st.SearchStrategy[str]:
    """Outputs as the models of the family write them."""
    fmt = format_of(name)
    return st.booleans().flatmap(
        lambda t: messages(name, reasons=reasons(name, t)).flatmap(
            lambda message: st.sampled_from([prompt.text for prompt in fmt.forms(message, thinking=t)])
        )
    )


# -- outputs gone wrong -----------------------------------------------------------------------------------------------

_SCRAPS = (
    *_BITS,
    *("get_weather", "ns.get-time", "unheard", "functions.", ":0", ' name="', ' key="x"', ' string="true"', "city"),
    *('{"city": "Paris"}', '{"city": "', '"}', '{"name": "ping", "arguments": {', "}}", "null", "true", "-1.50", "```"),
    *("<think>", "</think>", "json", "ping()", "city='x'", " to=functions.ping", "\u2028", "\x00", "hello "),
)


@functools.cache
def scraps(name: str) -> st.SearchStrategy[str]:
    """Markers, pieces of them, and what stands between them."""
    known = markers(name)
    cuts = st.tuples(st.sampled_from(known), st.integers(0, 40)).map(lambda cut: cut[0][: cut[1]])
    return st.sampled_from(known) | cuts | st.sampled_from(_SCRAPS) | st.text(max_size=6)


@st.composite
def _mutated(draw: st.DrawFn, name: str) -> str:
    """A written output with a few things deleted, doubled, swapped, put elsewhere, cut off or mixed in."""
    splitter = f"({'|'.join(map(re.escape, sorted(markers(name), key=len, reverse=True)))})"
    pieces = [piece for piece in re.split(splitter, draw(written(name))) if piece]
    at = st.integers(0, max(0, len(pieces) - 1))
    for _ in range(draw(st.integers(1, 3))):
        i, j = draw(at) % max(1, len(pieces)), draw(at) % max(1, len(pieces))
        match draw(st.sampled_from(("delete", "double", "swap", "other", "cut", "mix"))):
            case "delete":
                pieces[i : i + 1] = []
            case "double":
                pieces[i:i] = pieces[i : max(i, j) + 1]
            case "swap" if pieces:
                pieces[i], pieces[j] = pieces[j], pieces[i]
            case "other":
                pieces[i : i + 1] = [draw(st.sampled_from(markers(name)))]
            case "cut" if pieces:
                pieces[i:] = [pieces[i][: draw(st.integers(0, len(pieces[i])))]]
            case "mix" if pieces:
                where = draw(st.integers(0, len(pieces[i])))
                pieces[i] = pieces[i][:where] + draw(scraps(name)) + pieces[i][where:]
    return "".join(pieces)


@functools.cache
def outputs(name: str) -> st.SearchStrategy[str]:
    """Any output: written, mutated, or scraps."""
    mixed = st.lists(scraps(name), max_size=14).map("".join)
    return _mutated(name) | mixed | st.tuples(mixed, _mutated(name)).map("".join) | written(name)


@functools.cache
def id_outputs(name: str) -> st.SearchStrategy[list[int]]:
    """Any ids: control tokens, encoded scraps and texts, and ids that stand for no token."""
    tokenizer = tokenizer_of(name)
    control = st.sampled_from(sorted(tokenizer.control.values())).map(lambda token: [token])
    anything = st.integers(-2, tokenizer.vocab_size + 2).map(lambda token: [token])
    return st.lists(control | scraps(name).map(tokenizer.encode) | anything, max_size=16).map(
        lambda groups: [token for group in groups for token in group]
    )


_K3_TAG = "(message|think|response|tools|call|argument|json)"
#: The attributes of a tag that are read, by the tag's name.
_READ = {"call": ("tool", "name"), "argument": ("key", "name")}
_ATTRIBUTE = re.compile(r"""(?<![\w.:-])([\w.:-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")


def swallowed(name: str, text: str) -> set[int]:
    """Where in `text` a character may stand that is neither text nor part of a call: in attributes that are not read.

    They stand in the tags of a family's calls; anything else in such a tag is content.
    """
    places: set[int] = set()
    opening, end = _tags(name)
    to_end = re.compile(rf"""(?:"[^"]*"|'[^']*'|(?!{end}).)*""", re.DOTALL)
    for tag in re.finditer(opening, text):
        inside = to_end.match(text, tag.end(), tag.end() + LONGEST_HEADER)
        assert inside is not None
        attributes = list(_ATTRIBUTE.finditer(text, *inside.span()))
        read = next((a for key in _READ.get(tag[1], ("name",)) for a in attributes if a[1] == key), None)
        places |= {place for a in attributes if a is not read for place in range(*a.span())}
    return places


def _tags(name: str) -> tuple[str, str]:
    """Regexes for a family's opening tags with attributes (group 1 is the tag's name) and for what ends such a tag."""
    reader = format_of(name).reader_type
    if issubclass(reader, TagReader):
        return f"({re.escape(reader.call)}|{re.escape(reader.parameter)})", ">"
    if issubclass(reader, KimiK3Reader):
        return rf"<\|open\|>{_K3_TAG}", rf"<\|(?:sep|end_of_msg)\|>|<\|(?:open|close)\|>{_K3_TAG}"
    return "(?!)", ">"


# -- reading them -----------------------------------------------------------------------------------------------------

cuts = st.lists(st.integers(min_value=0), max_size=10)


def cut(whole: Any, places: Iterable[int]) -> list[Any]:
    """`whole` (a text or ids) in the pieces that end at `places`, some of them perhaps empty."""
    ends = sorted((0, len(whole), *(place % (len(whole) + 1) for place in places)))
    return [whole[a:b] for a, b in pairwise(ends)]


def stream(name: str, pieces: Iterable[str], reason: str = "stop", tools: Any = TOOLS, **asked: Any) -> list[Event]:
    reader = format_of(name).reader(tools, **asked)
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.finish(reason)]


def stream_ids(name: str, pieces: Iterable[list[int]], tokenizer: Tokenizer, **asked: Any) -> list[Event]:
    reader = format_of(name).reader(TOOLS, tokenizer=tokenizer, **asked)
    return [*(event for ids in pieces for event in reader.feed("", ids)), *reader.finish()]


def exact(arguments: str) -> Any:
    """JSON with the order of keys, every key that comes twice, and every digit."""
    return json.loads(arguments, parse_int=_Number, parse_float=_Number, object_pairs_hook=tuple)


class _Number(str):
    """A number as it is written: equal to no string."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def meaning(message: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    """A message up to its calls' ids and how their arguments are laid out."""
    return message.content, message.reasoning, [(call.name, exact(call.arguments)) for call in message.calls]
