"""`jinja`: any other model. Its prompts come from its own chat template, its answers are read as a known family's.

Which family that is, who begins a reasoning block and what ends a turn is found by asking the template: see `probes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dovetail.conversation import Message, check_renderable
from dovetail.errors import RenderError
from dovetail.formats.base import Format, Messages, ReasoningBlock, Tools
from dovetail.formats.probes import Block, Probe
from dovetail.formats.template import MOST_TURNS, Template, pattern
from dovetail.grammar import ControlToken, ExactText, Node
from dovetail.reading import CallReader
from dovetail.tokens import Prompt, Segment

#: What templates call the switch that lets the model reason.
_SWITCHES = ("enable_thinking", "thinking", "reasoning")
#: Turns of all loops while a template is asked. Its messages are few and short, and its questions many.
_PROBE_TURNS = 20_000


class PlainReader(CallReader):
    """Reads reasoning and content."""

    controls = ("<think>", "</think>")
    openers = ()


class Plain(Format):
    """How a model is read whose calls, if it makes any, are those of no family."""

    name = "plain"
    reasoning: ReasoningBlock = "none"
    end_of_turn = ()
    _reader = PlainReader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        if message.calls:
            raise RenderError("how the model makes calls is not known: its chat template shows those of no family")
        return Prompt([Segment(message.content, False)])


class Templates:
    """A model's chat template, or its two: `with_tools` is for requests with tools."""

    def __init__(self, template: Template, with_tools: Template, controls: frozenset[str]) -> None:
        self.template, self.with_tools = template, with_tools
        self.controls = controls
        self._pattern = pattern(controls)
        declared = {*template.options, *with_tools.options}
        self.options = tuple(sorted(declared - {"thinking"}))  # which is an option of every format
        self.switches = tuple(switch for switch in _SWITCHES if switch in declared)

    def render(
        self,
        messages: Messages,
        tools: Tools,
        open_turn: bool,
        thinking: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
        most_turns: int = MOST_TURNS,
    ) -> Prompt:
        # Of several switches, those that are not given follow the one that is.
        switched = next((options[switch] for switch in self.switches if switch in options), thinking)
        return (self.with_tools if tools else self.template).render(
            messages,
            tools,
            controls=self._pattern,
            add_generation_prompt=open_turn,
            options={**dict.fromkeys(self.switches, switched), **options},
            most_turns=most_turns,
        )


class JinjaFormat(Format):
    """Made by `jinja`, which mixes it with the family that reads."""

    name = "jinja"

    def __init__(self, templates: Templates, probe: Probe, family: Format, marks: str, ends: Iterable[str]) -> None:
        self._templates = templates
        self.template_options, self.switches = templates.options, templates.switches
        #: The name of the family that reads, and what the template writes in front of a call's name.
        self.reads, self.marks = family.name, marks
        self.history_rules = probe.history_rules(family)
        block = None if probe.reads_reasoning(family) else probe.block()
        ends = tuple(dict.fromkeys((*probe.ends(), *ends)))
        self._reader = _reader(family._reader, block, ends, probe.opening(), templates.controls)
        self.end_of_turn = tuple(
            dict.fromkeys(end for end in (*ends, *family.end_of_turn) if end != self._reader.think_end.strip())
        )
        self._before_answer, self._header = probe.header(self._reader.think.strip())
        self.reasoning = probe.reasoning(self)
        self._writes_as_family = self.reasoning == family.reasoning and self._reader.think == family._reader.think

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        try:
            return self._templates.render(messages, tools, open_turn, thinking, options)
        except RenderError:
            check_renderable(messages, tools)
            raise

    def left_open(self, prompt: Prompt) -> bool:
        if super().left_open(prompt):
            return True
        opener = self._reader.think.strip()
        text = prompt.pieces[-1] if len(prompt.pieces) % 2 else ""
        header = self._header.match(text)
        if opener in self._templates.controls or header is None:
            return False
        if self._before_answer and prompt.pieces[1::2][-1:] != self._before_answer:
            return False
        # Where no control token opens reasoning, text does at the very beginning of an answer.
        answer = text[header.end() :].lstrip()
        closers = (self._reader.think_end.strip(), *self.end_of_turn)
        return answer.startswith(opener) and not any(closer in answer for closer in closers)

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """As the family writes it, with the template's reasoning block and end, and the tokenizer's control tokens."""
        if self._writes_as_family:
            segments = [*super().write(message, thinking=thinking).segments]  # type: ignore[safe-super]  # the family's
        else:
            bare = Message(message.content, "", message.calls)
            segments = [*super().write(bare, thinking=False).segments]  # type: ignore[safe-super]
            segments = [*self._block(message.reasoning if thinking else None), *segments]
        controls = self._templates.controls
        end = segments.pop().text if segments and segments[-1].control else ""
        if end not in controls:
            end = self.end_of_turn[0] if self.end_of_turn else end
        segments.append(Segment(end, True))
        return Prompt(Segment(text, control and text in controls) for text, control in segments)

    def _block(self, reasoning: str | None) -> Iterable[Segment]:
        """The reasoning block, as far as the model writes it; None: it does not reason."""
        reader = self._reader
        if reasoning is None or self.reasoning == "none" or (self.reasoning == "written" and not reasoning):
            return
        end = reader.think_end.lstrip()
        if self.reasoning == "written":
            yield Segment(reader.think.strip(), True)
        if self.reasoning == "written" or not reader.prompted_after_think:
            yield Segment("\n" * reader.after_think, False)
        yield Segment(reasoning + reader.think_end.removesuffix(end), False)
        yield Segment(end, True)
        yield Segment("\n" * reader.after_think_end, False)

    def _mark(self, literal: str) -> Node:
        return ControlToken(literal) if literal in self._templates.controls else ExactText(literal)

    def _declared_order(self, schema: Any) -> Any:
        return schema  # in whatever order the family's own declarations are, a template's are as they come


def jinja(
    template: Template,
    controls: Iterable[str],
    families: Iterable[Format],
    *,
    with_tools: Template | None = None,
    ends: Iterable[str] = (),
) -> JinjaFormat:
    """The format of a chat template. One of `families` reads what it asks for, if one fits.

    `controls` are the literals of all control tokens, `ends` those that are known to end a turn. `with_tools` is the
    template for requests with tools, if that is another.
    """
    templates = Templates(template, with_tools or template, frozenset(controls))
    probe = Probe(functools.partial(templates.render, most_turns=_PROBE_TURNS), templates.with_tools.source)
    family, marks = probe.family(families) or (Plain(), "")
    mixed = type(JinjaFormat.__name__, (JinjaFormat, type(family)), {"__module__": __name__})
    made: JinjaFormat = mixed(templates, probe, family, marks, ends)
    return made


def _reader(
    reader: type[CallReader], block: Block | None, ends: Iterable[str], prompt: str, known: frozenset[str]
) -> type[CallReader]:
    """The family's reader with the tags that the template puts around reasoning, and its ends of a turn.

    Where `prompt` ends in the opening tag, the newlines behind that are not the model's to write.
    """
    own: dict[str, Any] = {}
    tags, controls = (reader.think.strip(), reader.think_end.strip()), reader.controls
    if block is not None and reader._read is CallReader._read:
        own |= block._asdict()
        controls = (block.think, block.think_end.strip(), *(literal for literal in controls if literal not in tags))
    else:  # a family to which its tags are text may meet a tokenizer to which they are control tokens
        controls = (*controls, *(tag for tag in tags if tag in known and tag not in controls))
    # A reader can tell no literal from another that begins with it.
    more = tuple(end for end in ends if not any(c.startswith(end) or end.startswith(c) for c in controls))
    if more:
        own["ends"] = (*reader.ends, *more)
    think, newlines = own.get("think", reader.think), "\n" * own.get("after_think", reader.after_think)
    if newlines and prompt.rstrip("\n").endswith(think):
        own["prompted_after_think"] = prompt.endswith(think + newlines)
    if not own and controls == reader.controls:
        return reader
    made: type[CallReader] = type(reader.__name__, (reader,), own | {"controls": (*controls, *more)})
    return made
