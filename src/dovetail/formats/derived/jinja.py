"""`jinja`: the format of a model that has a chat template and no format of its own.

Its prompts come from the template. Its answers are read, written and constrained by the family whose calls the template
shows. `probes` finds that family, and the template's reasoning block and end of turn, by rendering small conversations.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dovetail.conversation import check_renderable
from dovetail.errors import DovetailError, RenderError
from dovetail.events import Message
from dovetail.formats.base import Format, Messages, ReasoningBlock, Tools
from dovetail.formats.derived import differencing, generic, proof
from dovetail.formats.derived.differencing import Derivation, Derived
from dovetail.formats.derived.limits import Limits
from dovetail.formats.derived.probes import Block, Probe
from dovetail.formats.derived.proof import Verdict
from dovetail.formats.derived.template import Template, pattern
from dovetail.formats.efforts import EFFORTS
from dovetail.formats.parts import with_places
from dovetail.formats.prompts.history import GENERIC_TOOLS, Repair, Repaired
from dovetail.formats.response_templates.anchors import Refused
from dovetail.formats.response_templates.blanks import as_rendered
from dovetail.formats.response_templates.families import families
from dovetail.grammar import Grammar
from dovetail.reading import CallReader, Reader
from dovetail.tokens import Prompt, Segment

_log = logging.getLogger(__name__)

#: The names of the template option that lets a model reason.
_SWITCHES = ("enable_thinking", "thinking", "reasoning")
#: Probes render short conversations, so that less is allowed than for a request: passes through loops for one, and for
#: all together, and characters of a text.
_MAX_PROBE_PASSES, _MAX_ALL_PROBE_PASSES = 20_000, 250_000
_MAX_PROBE_LENGTH = 128 * 1024
#: The time in probes, so that a format does not depend on when it is made, and another time, of which all parts differ.
_NOW, _LATER = datetime.datetime(2025, 3, 4, 5, 6, 7), datetime.datetime(2038, 11, 23, 18, 59, 58)


class PlainReader(CallReader):
    """Reads reasoning and content."""

    controls = ("<think>", "</think>")
    openers = ()


class Plain(Format):
    """The family of a model that makes no calls, or whose calls no family reads."""

    name = "plain"
    reads_calls = False
    reasoning: ReasoningBlock = "none"
    end_of_turn = ()
    reader_type = PlainReader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        if message.calls:
            raise RenderError("how the model makes calls is not known: its chat template shows calls of no family")
        return Prompt([Segment(message.content, False)])


class Templates:
    """A model's chat template, or two of them: `with_tools` is for requests with tools.

    `spelling`: how a template that shows no tools is given them.
    """

    def __init__(
        self,
        template: Template,
        with_tools: Template,
        controls: frozenset[str],
        spelling: generic.Spelling | None = None,
    ) -> None:
        self.template, self.with_tools = template, with_tools
        self.controls, self._spelling = controls, spelling
        self._pattern = pattern(controls)
        declared = {*template.options, *with_tools.options}
        self.options = tuple(sorted(declared - {"thinking"}))  # every format has that option
        self.switches = tuple(switch for switch in _SWITCHES if switch in declared)
        self._probe_passes = _MAX_ALL_PROBE_PASSES

    def render(
        self,
        messages: Messages,
        tools: Tools,
        open_turn: bool,
        thinking: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
        limits: Limits | None = None,
        now: datetime.datetime | None = None,
    ) -> Prompt:
        if self._spelling is not None:
            messages, tools = self._spelling.spelled(messages, tools), None
        # If the client sets one of several switches, the others get the same value.
        switched = next((options[switch] for switch in self.switches if switch in options), thinking)
        return (self.with_tools if tools else self.template).render(
            messages,
            tools,
            controls=self._pattern,
            add_generation_prompt=open_turn,
            options={**dict.fromkeys(self.switches, switched), **options},
            limits=limits,
            now=now,
        )

    def probe(
        self,
        messages: Messages,
        tools: Tools,
        open_turn: bool,
        options: Mapping[str, Any] = MappingProxyType({}),
        now: datetime.datetime = _NOW,
    ) -> Prompt:
        """Render a small conversation. What all of these together may do is limited."""
        limits = Limits(min(_MAX_PROBE_PASSES, self._probe_passes), _MAX_PROBE_LENGTH, 4 * _MAX_PROBE_LENGTH)
        before = limits.remaining
        try:
            return self.render(messages, tools, open_turn, options=options, limits=limits, now=now)
        finally:
            self._probe_passes -= before - max(0, limits.remaining)

    @functools.cached_property
    def efforts(self) -> tuple[str, ...]:
        """The levels of reasoning effort that the template does not refuse; none if it has no such option."""
        return tuple(effort for effort in EFFORTS if "reasoning_effort" in self.options and self._takes(effort))

    def _takes(self, effort: str) -> bool:
        question = [{"role": "user", "content": "hi"}]
        try:
            self.probe(question, None, True, options={"reasoning_effort": effort})
        except DovetailError:
            return False
        return True


class JinjaFormat(Format):
    """A chat template that renders, and the family that reads, writes and constrains. Made by `jinja`."""

    name = "jinja"
    #: Why the checkpoint's `response_template` is not used; "" if it is, or is not needed, or does not exist.
    refusal: str = ""

    def __init__(
        self,
        templates: Templates,
        probe: Probe,
        family: Format,
        call_opening: str,
        ends: Iterable[str],
        writer: JinjaFormat | None = None,
    ) -> None:
        self._templates, self._probe, self._ends = templates, probe, tuple(ends)
        self._tokenizer_controls = templates.controls
        #: What writes and constrains calls, if the family lays them out otherwise than the template.
        self._writer = writer
        self.template_options, self.switches = templates.options, templates.switches
        #: The name of the family, and the text that the template writes before a call's name.
        self.family_name, self.call_opening = family.name, call_opening
        self.reads_calls = family.reads_calls
        self.efforts = templates.efforts
        self.history_rules = probe.history_rules(family)
        self.picture = probe.picture()
        block = None if probe.reads_reasoning(family) else probe.block()
        inside = (family.reader_type.answer_end.lstrip(), *family.inside_turns)
        own_ends = (end for end in self._ends if end not in family.inside_turns)
        ends = self._all_ends = tuple(dict.fromkeys((*probe.ends(inside), *own_ends)))
        self.reader_type = _adapted_reader(family.reader_type, block, ends, probe.opening(), templates.controls)
        self.end_of_turn = tuple(
            dict.fromkeys(end for end in (*ends, *family.end_of_turn) if end != self.reader_type.think_end.strip())
        )
        adapted = functools.partial(
            family.adapted,
            name=self.name,
            template_options=self.template_options,
            end_of_turn=self.end_of_turn,
            reader=self.reader_type,
            tokenizer_controls=templates.controls,
            shown_order=probe.key_order(),
        )
        self._control_before_answer, self._header = probe.header(self.reader_type.think.strip())
        self._family = adapted(reasoning=family.reasoning)
        self.reasoning = probe.reasoning(self.left_open)
        self._family = adapted(reasoning=self.reasoning)
        self._family_writes_reasoning = (
            self.reasoning == family.reasoning and self.reader_type.think == family.reader_type.think
        )

    def with_family(self, family: Format, opening: str) -> JinjaFormat:
        """The same template with another family."""
        return JinjaFormat(self._templates, self._probe, family, opening, self._ends)

    def declared_by(self, spec: Any) -> Iterator[tuple[type[Format], str]]:
        """The families that a `response_template` may declare. Raises `Refused` if it declares none."""
        shown = functools.partial(
            as_rendered, render=self._templates.probe, objects=self.history_rules.arguments == "object"
        )
        return families(spec, self._templates.controls, self._all_ends, self._probe.block(), shown)

    @property
    def family(self) -> Format:
        """The family that reads the calls, as it is for this template."""
        return self._family

    @functools.cached_property
    def derived(self) -> Derived[JinjaFormat]:
        """The same template with a family that differencing derives, and what was derived."""

        if self._templates.with_tools.is_random:
            return Derived(None, Derivation(reason="the chat template draws random words"))
        later = functools.partial(self._templates.probe, now=_LATER)
        derived = differencing.derive(
            self._templates.probe, later, self._probe, self._templates.controls, self._all_ends, self.with_family
        )
        if derived.format is not None:
            vars(derived.format).update(derived=derived, verdict=Verdict())  # which `derive` has proved
        return derived

    @functools.cached_property
    def verdict(self) -> Verdict | None:
        """Whether this format reads, writes and constrains the calls that the template shows; None if it shows none."""
        shows = differencing.shows(self._templates.probe, self._probe, self._templates.controls, self._all_ends)
        return None if shows is None else proof.verdict(self, self._templates.probe, *shows)

    @property
    def is_unlike_template(self) -> bool:
        """Whether the family does not read the template's calls, or writes others after an opener of ordinary text.

        An opener that is a control token belongs to one family, which may know more layouts than the template shows.
        """
        if self.verdict is None:
            return False
        openers = getattr(self.reader_type, "openers", ())
        in_text = not any(control in opener for opener in openers for control in self.reader_type.controls)
        return bool(self.verdict.reading or (in_text and openers and self.verdict.writing))

    @property
    def lays_out_otherwise(self) -> bool:
        """Whether the family reads the template's calls, and writes or constrains them in another layout."""
        return self.verdict is not None and not self.verdict.reading and bool(self.verdict.failure)

    @property
    def takes_generic_tools(self) -> bool:
        """Whether the template shows neither tools nor calls, ends turns, and is the only one."""
        template, with_tools = self._templates.template, self._templates.with_tools
        alone = template == with_tools and not template.is_random
        return alone and bool(self._all_ends) and not self.reads_calls and not self._probe.knows_tools()

    def with_generic_tools(self) -> JinjaFormat:
        """The same template, given tools in the generic way."""
        old, probe = self._templates, self._probe
        family = generic.family(tuple(old.controls), self._all_ends)
        spelling = generic.Spelling(probe.shows_system(), self.history_rules.parts == "parts", family.controls)
        templates = Templates(old.template, old.with_tools, old.controls, spelling)
        made = JinjaFormat(templates, probe, family(), generic.OPENER, self._ends)
        made.history_rules = generic.rules(self.history_rules)
        return made

    def repaired(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        off: Iterable[str] = (),
        verbatim: Mapping[int, str] = MappingProxyType({}),
    ) -> Repaired:
        repaired = super().repaired(messages, tools, off=off, verbatim=verbatim)
        if self.family_name == generic.NAME and GENERIC_TOOLS not in off and generic.uses_tools(messages, tools):
            repaired.repairs.append(Repair(GENERIC_TOOLS, "tools"))
        return repaired

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        try:
            prompt = self._templates.render(messages, tools, open_turn, thinking, options)
        except RenderError:
            check_renderable(messages, tools)
            raise
        return prompt if self.picture is None else with_places(prompt, messages, self.picture)

    def left_open(self, prompt: Prompt) -> bool:
        return self._family.left_open(prompt) or self._left_open_by_text(prompt)

    def _left_open_by_text(self, prompt: Prompt) -> bool:
        """Whether `prompt` opens reasoning by a tag that is text. Such a tag counts at the start of an answer only."""
        opener = self.reader_type.think.strip()
        text = prompt.pieces[-1] if len(prompt.pieces) % 2 else ""
        header = self._header.match(text)
        if opener in self._templates.controls or header is None:
            return False
        if self._control_before_answer and prompt.pieces[1::2][-1:] != self._control_before_answer:
            return False
        answer = text[header.end() :].lstrip()
        closers = (self.reader_type.think_end.strip(), *self.end_of_turn)
        return answer.startswith(opener) and not any(closer in answer for closer in closers)

    def reader(self, tools: Tools = None, **options: Any) -> Reader:
        return self._family.reader(tools, **options)

    def grammar(self, tools: Tools = None, **options: Any) -> Grammar | None:
        return (self._writer or self._family).grammar(tools, **options)

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """The answer as the family writes it, with the template's reasoning block and end of turn."""
        if self._writer is not None:
            return self._writer.write(message, thinking=thinking)
        if self._family_writes_reasoning:
            segments = [*self._family.write(message, thinking=thinking).segments]
        else:
            without_reasoning = Message(message.content, "", message.calls)
            segments = [*self._family.write(without_reasoning, thinking=False).segments]
            segments = [*self._reasoning_block(message.reasoning if thinking else None), *segments]
        controls = self._templates.controls
        end = segments.pop().text if segments and segments[-1].control else ""
        if end not in controls:
            end = self.end_of_turn[0] if self.end_of_turn else end
        segments.append(Segment(end, True))
        return Prompt(Segment(text, control and text in controls) for text, control in segments)

    def _reasoning_block(self, reasoning: str | None) -> Iterator[Segment]:
        """The part of the reasoning block that the model writes itself; None: the model does not reason."""
        reader = self.reader_type
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


def jinja(
    template: Template,
    controls: Iterable[str],
    families: Iterable[Format],
    *,
    with_tools: Template | None = None,
    ends: Iterable[str] = (),
    generic_tools: bool = True,
    response_template: Any = None,
) -> JinjaFormat:
    """The format of a chat template. The same template gives the same format, which is made once.

    `controls`: the literals of all control tokens of the tokenizer.
    `families`: the formats of which one may read the template's calls.
    `with_tools`: the template for requests with tools, if the model has a second one.
    `ends`: the control tokens that end a turn according to the checkpoint's configuration.
    `generic_tools`: whether a template that shows no tools gets them in the generic way.
    `response_template`: the checkpoint's own declaration of its answers, which comes before differencing.
    """
    kinds = tuple(type(family) for family in families)
    declared = None if response_template is None else json.dumps(response_template)
    fmt = _jinja(template, with_tools or template, frozenset(controls), kinds, tuple(ends), generic_tools, declared)
    if fmt.refusal:
        _log.info("the response_template is not used: %s", fmt.refusal)
    if not fmt.reads_calls:
        _log.info("tool calls are not read: %s", fmt.derived.derivation.reason)
    return fmt


@functools.lru_cache(16)
def _jinja(
    template: Template,
    with_tools: Template,
    controls: frozenset[str],
    families: tuple[type[Format], ...],
    ends: tuple[str, ...],
    generic_tools: bool,
    response_template: str | None,
) -> JinjaFormat:
    templates = Templates(template, with_tools, controls)
    probe = Probe(templates.probe, templates.with_tools.source)
    native = probe.family([family() for family in families])
    fmt, refusal = JinjaFormat(templates, probe, *(native or (Plain(), "")), ends), ""
    if native is None or fmt.is_unlike_template:
        declared, refusal = (None, "") if response_template is None else _declared(fmt, json.loads(response_template))
        if declared is not None:
            native, fmt = declared
        elif fmt.derived.format is not None:
            return _refusing(fmt.derived.format, refusal)
    if native is not None and fmt.lays_out_otherwise and fmt.derived.format is not None and not fmt.derived.shows_ids:
        exact = JinjaFormat(templates, probe, *native, ends, writer=fmt.derived.format)
        vars(exact)["derived"] = fmt.derived
        return exact if exact.verdict == Verdict() else fmt.derived.format
    if generic_tools and fmt.takes_generic_tools:
        with_generic = fmt.with_generic_tools()
        if with_generic.verdict is not None and not with_generic.verdict.reading:
            return _refusing(with_generic, refusal)
    return _refusing(fmt, refusal)


def _refusing(fmt: JinjaFormat, refusal: str) -> JinjaFormat:
    fmt.refusal = refusal
    return fmt


def _declared(plain: JinjaFormat, spec: Any) -> tuple[tuple[tuple[Format, str], JinjaFormat] | None, str]:
    """The family that a `response_template` declares, with the format of the template, or why it is not used.

    `plain`: the format of the template without it.
    """
    best: tuple[tuple[Format, str], JinjaFormat] | None = None
    refusal = ""
    try:
        for kind, opening in plain.declared_by(spec):
            family = kind(), opening
            fmt = plain.with_family(*family)
            verdict = fmt.verdict
            if verdict is None:  # the chat template shows no calls, so that only the declaration can be tried
                verdict = proof.alone(fmt)
                refusal = refusal or verdict.failure
                best = best or (None if verdict.failure else (family, fmt))
            elif verdict == Verdict():
                return (family, fmt), ""
            elif verdict.reading:
                refusal = refusal or f"the chat template contradicts it: {verdict.reading}"
            else:
                best = best or (family, fmt)
    except Refused as error:
        refusal = str(error)
    except (LookupError, TypeError, ValueError) as error:
        refusal = f"no declaration expresses it: {error}"
    return best, "" if best is not None else refusal


def _adapted_reader(
    reader: type[CallReader], block: Block | None, ends: Iterable[str], prompt: str, tokenizer_controls: frozenset[str]
) -> type[CallReader]:
    """The family's reader with the template's reasoning tags (`block`) and ends of turn.

    Markers that are text in the family may be control tokens of this tokenizer.
    `prompt` is a rendered prompt for an answer. If it ends in the opening tag and the newlines after it, the model does
    not write these newlines.
    """
    changes: dict[str, Any] = {}
    tags: tuple[str, ...] = (reader.think.strip(), reader.think_end.strip())
    controls = reader.controls
    if block is not None and reader._read is CallReader._read:
        changes |= block._asdict()
        controls = (block.think, block.think_end.strip(), *(literal for literal in controls if literal not in tags))
        tags = ()
    in_text = (*tags, *(opener.strip() for opener in reader.text_openers), getattr(reader, "text_end", ""))
    controls = (*controls, *_unlike(dict.fromkeys(mark for mark in in_text if mark in tokenizer_controls), controls))
    if any(opener.strip() in controls for opener in reader.text_openers):
        changes["text_openers"] = tuple(opener for opener in reader.text_openers if opener.strip() not in controls)
    more_ends = _unlike(ends, controls)
    if more_ends:
        changes["ends"] = (*reader.ends, *more_ends)
    think, newlines = changes.get("think", reader.think), "\n" * changes.get("after_think", reader.after_think)
    if newlines and prompt.rstrip("\n").endswith(think):
        changes["prompted_after_think"] = prompt.endswith(think + newlines)
    if not changes and controls == reader.controls:
        return reader
    adapted: type[CallReader] = type(reader.__name__, (reader,), changes | {"controls": (*controls, *more_ends)})
    return adapted


def _unlike(literals: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    """Those of `literals` that a reader can tell from `others`, because neither begins the other."""
    return tuple(it for it in literals if not any(other.startswith(it) or it.startswith(other) for other in others))
