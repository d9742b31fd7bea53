"""`DeclaredFormat`: a family as a few templates, from which its reader, writer and grammar follow.

A template is markup with slots in it, such as `<tool_call>{call}</tool_call>`. See docs/adding-a-family.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

from dovetail.errors import RenderError
from dovetail.events import Call, Message
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.answers.parameter_grammar import Markup
from dovetail.formats.base import Format
from dovetail.formats.declared.declaration_checks import SLOT, check_attributes, check_calls, check_markers, check_slots
from dovetail.formats.declared.declared_answers import DeclaredAnswers
from dovetail.formats.declared.value_syntax import Syntax
from dovetail.grammar import Node
from dovetail.reading import CallReader
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_objects import Keys
from dovetail.reading.key_tags import KeyTagReader, SectionKeyTagReader
from dovetail.reading.parameters import members
from dovetail.reading.tags import TagReader
from dovetail.reading.two_languages import TagOrJsonReader
from dovetail.tokens import Prompt, Segment

#: Makes the node of a literal: see `Format.mark`.
Mark: TypeAlias = Callable[[str], Node]

#: The keys and slots of a call's JSON object.
_MEMBER = re.compile(r'"(\w+)": *"?\{(name|arguments|index|id)\}')
#: An opening tag that holds a name, up to the name: `<function={name}`, `<invoke name="{name}`.
_NAMED_TAG = re.compile(r'(<[^={}<>]*?[^\s={}<>])(=| name=")\{(?:name|key)\}')
_BLOCK = re.compile(r"(\n*)(\S+)(\n*)\{reasoning\}(\n*)(\S+)(\n*)")


class Declaration:
    """How a family writes its calls. See `JsonCalls` and `TagCalls`.

    The template of a section has the slot `{calls}`, or `{call}` if each call has a section of its own. Raises
    `ValueError` for a template with other slots than its own.
    """

    section: str
    call: str
    between: str
    after_content: str

    def __post_init__(self) -> None:
        check_calls(self)

    def segments(
        self, calls: Sequence[Call], controls: tuple[str, ...], *, after_content: bool, index: str | None = None
    ) -> Iterator[Segment]:
        """The calls as the model writes them. `index`: written as the index of each call; None: 0, 1, …"""
        if calls and after_content:
            yield from markup(self.after_content, controls)
        written = (self._call(call, str(i) if index is None else index, controls) for i, call in enumerate(calls))
        if "{call}" in self.section:
            yield from self._joined((filled(self.section, controls, call=call) for call in written), controls)
        elif calls:
            yield from filled(self.section, controls, calls=self._joined(written, controls))

    def _joined(self, calls: Iterable[Iterable[Segment]], controls: tuple[str, ...]) -> Iterator[Segment]:
        for i, call in enumerate(calls):
            if i:
                yield from markup(self.between, controls)
            yield from call

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        raise NotImplementedError

    @property
    def in_list(self) -> bool:
        """Whether the calls of a section are a JSON list."""
        return re.search(r"\[\s*\{calls\}", self.section) is not None

    @property
    def _around(self) -> tuple[str, str]:
        """A section's markup before and after the calls, with the newlines in front but no other layout."""
        before, _, after = SLOT.split(self.section)
        return (self.after_content + before).rstrip(" \n["), after.strip(" \n]")

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        """The class that reads such calls, and its attributes for this family."""
        raise NotImplementedError

    def syntax(self, mark: Mark) -> Syntax | None:
        """How values are written; None if arguments are JSON, or parameters with tags of their own."""
        return None

    def input_markup(self, mark: Mark) -> Markup | None:
        """How a call's only argument, a string, is written, if there is a `syntax`."""
        return None


@dataclass(frozen=True)
class JsonCalls(Declaration):
    """Calls that are JSON objects.

    `section`: a section of calls. Brackets around `{calls}` make a list of them.
    `call`: one object, with the slots `{name}`, `{arguments}` and perhaps `{index}`, the number of the call, or `{id}`.
    `between`: what separates two calls, or two sections if each call has its own.
    `after_content`: what separates the calls from the content before them.
    """

    section: str
    call: str = '{"name": "{name}", "arguments": {arguments}}'
    between: str = ""
    after_content: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots("call", self.call, {"name", "arguments"}, {"index", "id"})

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        return filled(self.call, controls, index=index, id=call.id, name=call.name, arguments=call.arguments)

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        opener, end = self._around
        if opener[-1:].isalnum() and self.in_list:
            opener = (self.after_content + SLOT.split(self.section)[0]).rstrip()  # a word alone opens nothing
        own = {slot: key for key, slot in _MEMBER.findall(self.call)}
        usual = Keys()
        return JsonCallReader, {
            **opened_by(controls, opener),
            "section": opener.lstrip(),
            "section_end": end,
            "inner": (end,) if is_control(end, controls) else (),
            "one_call_in_section": bool(end) and "{call}" in self.section,
            **({"id_comes_last": True} if self.call.find("{id}") > self.call.index("{arguments}") else {}),
            "keys": Keys(
                _with(own.get("name"), usual.name),
                _with(own.get("arguments"), usual.arguments),
                _with(own.get("index", own.get("id")), usual.id),
            ),
        }


@dataclass(frozen=True)
class TagCalls(Declaration):
    """Calls whose parameters are tags, one after another.

    `section`, `between`, `after_content`: see `JsonCalls`.
    `call`: one call, with the slots `{name}` and `{parameters}`. The name may be in a tag: `<invoke name="{name}">` or
    `<function={name}>`.
    `parameter`: one parameter, with the slots `{key}`, `{value}` and perhaps `{is_string}` (true or false). The key is
    in the tag, as the name is, or has a tag of its own: `<key>{key}</key><value>{value}</value>`.
    `no_parameters`: what a call without parameters has in their place.
    """

    section: str
    call: str
    parameter: str
    between: str = ""
    after_content: str = ""
    no_parameters: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots("call", self.call, {"name", "parameters"})
        check_slots("parameter", self.parameter, {"key", "value"}, {"is_string"})
        if not (_NAMED_TAG.search(self.call) and _NAMED_TAG.search(self.parameter)) and len(_tags(self.parameter)) != 6:
            raise ValueError(
                "parameter must be a tag with {key} in it around {value}, as call has one with {name}; or {key} and "
                f"{{value}} in tags of their own: {self.parameter!r}"
            )

    def _call(self, call: Call, index: str, controls: tuple[str, ...]) -> Iterator[Segment]:
        written = [
            filled(
                self.parameter,
                controls,
                key=key,
                value=self._value(value, is_string),
                is_string="true" if is_string else "false",
            )
            for key, value, is_string in parameters(call)
        ]
        inside = (segment for parameter in written for segment in parameter)
        empty = markup("" if written else self.no_parameters, controls)
        return filled(self.call, controls, name=call.name, parameters=(*inside, *empty))

    def _value(self, value: str, is_string: bool) -> str:
        """A value as it is written between a parameter's tags."""
        return value

    def reader(self, controls: tuple[str, ...]) -> tuple[type[CallReader], dict[str, Any]]:
        opener, end = self._around
        tagged, parameter = _NAMED_TAG.search(self.call), _NAMED_TAG.search(self.parameter)
        if tagged is None or parameter is None:
            return self._key_tag_reader(opener, end)

        def is_control(literal: str) -> bool:
            return any(control in literal for control in controls)

        def in_text(opening: str, tag: re.Match[str]) -> str:
            return opening if is_control(opening) else opening + tag[2].rstrip('"')

        # Markup may stand in front of a tag.
        call, key = (tag.string[: tag.end(1)].lstrip() for tag in (tagged, parameter))
        call_end, parameter_end = (template.rpartition("}")[2].strip() for template in (self.call, self.parameter))
        if not opener:  # each call opens a section of its own
            if not is_control(call):
                raise ValueError(f"section must surround calls whose tags are text: {self.section!r}")
            opener, end = self.after_content + call, call_end
        own: dict[str, Any] = {"section": opener.lstrip("\n"), "section_end": end}
        own |= {"call": call, "call_end": call_end, "call_in_text": in_text(call, tagged)}
        own |= {"parameter": key, "parameter_end": parameter_end, "parameter_in_text": in_text(key, parameter)}
        own |= opened_by(controls, opener, own["call_in_text"])
        own["inner"] = tuple(filter(is_control, (end, call_end, key, parameter_end)))
        own["one_line"] = self.parameter.endswith(parameter_end)
        own["newline_before_value"] = "\n{value}" in self.parameter
        own["declares_string"] = "{is_string}" in self.parameter
        return (TagOrJsonReader if tagged[2] == "=" else TagReader), own

    def _key_tag_reader(self, opener: str, end: str) -> tuple[type[CallReader], dict[str, Any]]:
        """The same, for keys that have tags of their own in sections from `opener` to `end`."""
        own: dict[str, Any] = {"section": opener.lstrip("\n"), "section_end": end}
        own["key"], _, own["key_end"], own["value"], _, own["parameter_end"] = _tags(self.parameter)
        own["one_line"] = self.parameter.endswith(own["parameter_end"])
        call, _, before_key, _, call_end = SLOT.split(self.call)
        call, name_end, call_end = call.strip(), before_key.strip(), call_end.strip()
        openers, inner, kind = [opener], [end], KeyTagReader
        if call:
            own |= {"outer": own["section"], "outer_end": end, "section": call, "section_end": call_end}
            openers, inner, kind = [opener, call], [end, call_end], SectionKeyTagReader
        if name_end:
            own["name_end"] = name_end
            inner.append(name_end)
        inner += (own[tag] for tag in ("key", "key_end", "value", "parameter_end"))
        unopened = tuple(dict.fromkeys("{name}" + space + own["key"] for space in (before_key, "", "\n")))
        return kind, own | {"openers": tuple(openers), "inner": tuple(inner), "unopened": unopened}


class DeclaredFormat(Format):
    """A format that is declared by templates.

    A subclass with an attribute that does not exist, without a required one or with one of a wrong shape raises
    `TypeError` or `ValueError` when it is made.
    """

    _answers: type[AnswerGrammar] = DeclaredAnswers

    #: The control tokens of the templates.
    controls: ClassVar[tuple[str, ...]]
    #: The reasoning block, with the newlines that belong to its tags.
    reasoning_block: ClassVar[str] = "<think>{reasoning}</think>"
    #: Whether an answer without reasoning begins with the tag that closes the block.
    lone_think_end: ClassVar[bool] = False
    #: The content, where a message has any.
    answer: ClassVar[str] = "{content}"
    #: Ordinary text that some models write around all that follows the reasoning. It is read, but not written.
    wrapped_answer: ClassVar[str] = "{answer}"
    calls: ClassVar[Declaration]
    #: Other layouts of calls that models of the family write. The reader reads them as well.
    other_calls: ClassVar[tuple[Declaration, ...]] = ()
    #: The token that ends a turn after calls, if it is not the first of `end_of_turn`.
    end_after_calls: ClassVar[str] = ""
    #: Control tokens that end an output, but no turn.
    other_ends: ClassVar[tuple[str, ...]] = ()
    #: Control tokens that begin a text or a turn. At the beginning of an answer they are dropped.
    begin_of_text: ClassVar[tuple[str, ...]] = ()
    #: Whether a prompt that opens the block also writes the newlines after the opening tag.
    newlines_in_prompt: ClassVar[bool] = False
    #: The base class of the reader, for a family with rules that templates cannot express.
    script: ClassVar[type[CallReader] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_attributes(cls)
        controls = tuple(dict.fromkeys((*cls.controls, *cls.end_of_turn, *cls.other_ends)))
        reads, own = cls.calls.reader(controls)
        script = cls.script or reads
        if isinstance(cls.calls, JsonCalls):
            _read_other_sections(own, (calls.reader(controls)[1] for calls in cls.other_calls))
        own["inner"] = tuple(dict.fromkeys((*script.inner, *own["inner"])))
        if any(calls.in_list for calls in (cls.calls, *cls.other_calls)):
            own["in_list"] = True
        own |= {"controls": controls, "begin_of_text": cls.begin_of_text}
        own |= {"ends": (*cls.end_of_turn, *cls.other_ends), **_around_text(cls)}
        cls.reader_type = cast(type[CallReader], type(f"{cls.__name__}Reader", (script,), own))
        check_markers(cls)

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        return self._written(message, thinking, self.calls_to_write())

    def calls_to_write(self) -> Declaration:
        """The declaration that `write` and the grammar use, if it depends on the model's tokenizer."""
        return self.calls

    def forms(self, message: Message, *, thinking: bool = True) -> Iterator[Prompt]:
        for calls in (self.calls, *self.other_calls):
            yield self._written(message, thinking, calls)

    def _written(self, message: Message, thinking: bool, calls: Declaration, index: str | None = None) -> Prompt:
        return Prompt(self._segments(message, thinking, calls, index))

    def _segments(self, message: Message, thinking: bool, calls: Declaration, index: str | None) -> Iterator[Segment]:
        controls = self.reader_type.controls
        if thinking and (message.reasoning or self.reasoning != "none"):
            block = self.reasoning_block
            if self.reasoning == "opened":
                block = block[block.index("{") :]
            elif self.lone_think_end and not message.reasoning:
                block = block[block.index("}") + 1 :] + "{reasoning}"
            yield from filled(block, controls, reasoning=message.reasoning)
        if message.content:
            yield from filled(self.answer, controls, content=message.content)
        yield from calls.segments(message.calls, controls, after_content=bool(message.content), index=index)
        yield Segment((message.calls and self.end_after_calls) or self.end_of_turn[0], True)


def _read_other_sections(own: dict[str, Any], others: Iterable[dict[str, Any]]) -> None:
    """Add to a reader's attributes what other layouts of sections need."""
    for other in others:
        for name in ("openers", "text_openers", "inner"):
            own[name] = tuple(dict.fromkeys((*own[name], *other[name])))
        if other["section"] not in ("", own["section"]):
            layout = other["section"], other["section_end"], other["one_call_in_section"]
            own.setdefault("other_sections", {})[other["section"]] = layout


def _around_text(fmt: type[DeclaredFormat]) -> dict[str, Any]:
    """The reader's attributes for reasoning and content."""
    block = _BLOCK.fullmatch(fmt.reasoning_block)
    if block is None:
        raise ValueError(f"{fmt.__name__}.reasoning_block must be two tags around {{reasoning}}, with newlines at most")
    opener, closer = fmt.answer.split("{content}")
    wrapper, wrapper_end = fmt.wrapped_answer.split("{answer}")
    return {
        "think": block[2],
        "think_end": block[4] + block[5],
        "before_think": len(block[1]),
        "after_think": len(block[3]),
        "after_think_end": len(block[6]),
        "prompted_after_think": fmt.newlines_in_prompt,
        "lone_think_end": fmt.lone_think_end,
        "answer": opener.strip(),
        "answer_end": closer.rstrip(),
        "after_answer": len(opener) - len(opener.rstrip()) if opener.strip() else 0,
        "after_answer_end": len(closer) - len(closer.rstrip()),
        "before_content": 0 if opener.strip() else len(opener),
        "wrapper": wrapper.strip(),
        "wrapper_end": wrapper_end.strip(),
    }


# -- templates --------------------------------------------------------------------------------------------------------


def filled(template: str, controls: tuple[str, ...], **slots: str | Iterable[Segment]) -> Iterator[Segment]:
    """A template with its slots filled. A string in a slot is text, even if it spells a control token."""
    for i, piece in enumerate(SLOT.split(template)):
        if i % 2 == 0:
            yield from markup(piece, controls)
        elif isinstance(value := slots[piece], str):
            yield Segment(value, False)
        else:
            yield from value


@functools.lru_cache(1024)
def markup(literal: str, controls: tuple[str, ...]) -> tuple[Segment, ...]:
    """A format's own text, in which control literals are control tokens."""
    pieces = re.split(f"({'|'.join(map(re.escape, controls))})", literal)
    return tuple(Segment(piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece)


def is_control(literal: str, controls: tuple[str, ...]) -> bool:
    """Whether a marker contains a control token."""
    return any(control in literal for control in controls)


def opened_by(controls: tuple[str, ...], *openers: str) -> dict[str, Any]:
    """The reader's attributes for what opens its sections: markers with newlines in front, or "" for none."""
    openers = tuple(opener for opener in openers if opener)
    in_text = (opener for opener in openers if not is_control(opener, controls))
    return {
        "openers": openers,
        "text_openers": tuple(dict.fromkeys(form for opener in in_text for form in (opener, opener.lstrip()))),
    }


def parameters(call: Call) -> Iterator[tuple[str, str, bool]]:
    """(key, value, whether it is a string) of each argument. Raises `RenderError` if they are not a JSON object."""
    try:
        yield from members(call.arguments)
    except (ValueError, RecursionError):
        raise RenderError(f"the arguments of {call.name} are not a JSON object") from None


def _tags(template: str) -> list[str]:
    """The markup and the slots of a template in turn, without whitespace: `<key>`, key, `</key>`, `<value>`, …"""
    pieces = re.findall(r"<[^<>]+>|\{\w+\}", template)
    return [piece.strip("{}") for piece in pieces]


def _with(own: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    return usual if own is None else tuple(dict.fromkeys((own, *usual)))
