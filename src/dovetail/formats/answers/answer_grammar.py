"""`AnswerGrammar`: what a model of one format may answer to a request: reasoning, then content or calls.

A family whose answers have another shape subclasses it and overrides the part that differs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.conversation import ResponseFormat, Tool, check_response_format, check_tools
from dovetail.errors import InvalidRequest, RenderError
from dovetail.events import INVISIBLE, Message
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.call_envelope import CallEnvelope, Family
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.answers.tool_choice import Strict, enforceable, names_one, resolve_tool_choice
from dovetail.grammar import (
    Choice,
    Concat,
    ControlToken,
    ExactText,
    FreeText,
    Grammar,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    Regex,
    TextUntil,
    VisibleText,
)
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.repair import Budget
from dovetail.tokens import Prompt

if TYPE_CHECKING:
    from dovetail.formats.base import Format

#: The beginning of text after required calls, without the characters with which calls begin. A model that wants to
#: write text gets that far, and then has to end its turn.
TEXT_AFTER_CALLS = Regex(r"[^<>\[\]{},;]{1,24}")


#: What a reader cannot see.
BLANKS = Regex(f"[{INVISIBLE}]+")


class Asked(msgspec.Struct, frozen=True):
    """What a request asks of an answer.

    `tools`: the tools that may be called, by index in the request; their `parameters` are what is enforced.
    `others`: the names of the tools that may not be called.
    `required`: whether the answer has to be a call. `parallel`: whether it may have several.
    `thinking`: whether it may begin with reasoning.
    `silent`: whether it may end without a call and without a character of content that a reader can see.
    `unlike`: ordinary texts with which reasoning may begin or end, so that text does not begin with them.
    """

    thinking: bool
    silent: bool
    unlike: tuple[str, ...] = ()
    tools: Mapping[int, Tool] = {}
    others: Sequence[str] = ()
    required: bool = False
    parallel: bool = True

    @property
    def text(self) -> Node:
        """Text that may be the whole answer."""
        return FreeText() if self.silent else VisibleText((), self.unlike)


class AnswerGrammar:
    def __init__(self, fmt: Format) -> None:
        self.format = fmt
        self.reader = fmt.reader_type

    def for_request(
        self,
        tools: Any,
        *,
        tool_choice: Any,
        strict: Strict,
        thinking: bool,
        parallel_tool_calls: bool,
        response_format: Any,
        silent: bool,
    ) -> Grammar | None:
        """See `Format.grammar`."""
        declared = check_tools(tools)
        choice, allowed = resolve_tool_choice(tool_choice, declared)
        requested = check_response_format(response_format)
        more_than_auto = requested is not None or tool_choice not in (None, "auto") or not parallel_tool_calls
        budget = Budget()
        required = choice == "required"
        # A named tool is called exactly once.
        parallel = parallel_tool_calls and not (required and names_one(tool_choice))
        enforced = {i: enforceable(tool, strict, budget) for i, tool in allowed.items()}
        callable_tools = {i: tool for i, (tool, _) in enforced.items()}
        if strict == "off" and not more_than_auto and not any(tool.strict for tool in allowed.values()):
            return None
        # The bounds are checked before a family takes the schemas apart.
        schemas = [
            JsonSchema(tool.parameters, tool.schema_field)
            for tool in callable_tools.values()
            if tool.parameters is not None
        ]
        if requested is not None:
            schemas.append(JsonSchema(requested.schema, requested.origin))
        bounds.check_once(schemas)
        if requested is not None:
            may_call = callable_tools and choice != "none"
            calls = self.calls(callable_tools, parallel) if may_call else None
            content = None if required else self.structured(requested)
            grammar = self.calls_or_structured(calls, content, thinking)
        elif tool_choice == "none":
            return self.content_only(Asked(thinking, silent, self._text_marks))
        elif not declared:
            return None
        else:
            others = [tool.name for i, tool in enumerate(declared) if i not in callable_tools]
            grammar = self.answer(Asked(thinking, silent, self._text_marks, callable_tools, others, required, parallel))
        if required and parallel and (after := self.after_calls()) is not None:
            grammar = Grammar(Concat((grammar.root, Maybe(after))))
        for tool, left_out in enforced.values():
            if left_out:
                grammar = Grammar(Loosened(grammar.root, tool.schema_field, tuple(left_out)))
        return grammar

    # -- whole answers ------------------------------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Grammar:
        """Content, calls, or both; calls alone if they are required, because text before them might go on for ever."""
        section = self.calls(asked.tools, asked.parallel)
        opened, closed = self._wrapper()
        if asked.required:
            return Grammar(Concat((*self._before_calls(asked.thinking), *opened, section, *closed)))
        reasoning = self._reasoning(asked.thinking)
        if asked.silent:
            after = call_envelope.after_text(self.content(), section, self.text_openers)
        else:
            # llguidance would take a mark for the beginning of the text before calls, if that is ordinary text.
            unlike = () if self.text_openers else asked.unlike
            before, said = (
                self.free_content(Maybe(BLANKS)),
                self.answer_block(VisibleText(self.text_openers, unlike)),
            )
            after = call_envelope.after_visible_text(before, said, section, self.text_openers)
        return Grammar(Concat((*reasoning, after, *closed)))

    def _wrapper(self) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """What a model may write before and after calls, if it wraps its answers in ordinary text."""
        if not self.reader.wrapper:
            return (), ()
        opener, closer = ExactText(self.reader.wrapper), ExactText(self.reader.wrapper_end)
        return (Maybe(Concat((opener, *_new_lines(1)))),), (*_new_lines(1), Maybe(closer))

    def content_only(self, asked: Asked) -> Grammar:
        content = self.free_content(asked.text) if asked.silent else self.answer_block(asked.text)
        return Grammar(Concat((*self._reasoning(asked.thinking), content)))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        """Calls or content of a response format, with no other text. None: the answer cannot be that.

        In front of the content there are only the new lines that belong to the markup, which the reader drops.
        """
        either: list[Node] = []
        if calls is not None:
            either.append(Concat((*_new_lines(self.new_lines_before_calls), calls)))
        if content is not None:
            either.append(Concat((*_new_lines(self.reader.before_content), self.answer_block(content))))
        return Grammar(Concat((*self._reasoning_and_new_lines(thinking), Choice(tuple(either)))))

    def _before_calls(self, thinking: bool) -> tuple[Node, ...]:
        """The reasoning block before calls, with no more new lines than the family writes there."""
        before = self.new_lines_before_calls
        after = _new_lines(self.reader.after_think_end + before)
        match self.reasoning(thinking):
            case (Maybe(block),):
                return (
                    (Choice((Concat((block, *after)), *_new_lines(before))),)
                    if before
                    else (Maybe(Concat((block, *after))),)
                )
            case ():
                return _new_lines(before)
            case nodes:
                return (*nodes, *after)

    def _reasoning(self, thinking: bool) -> tuple[Node, ...]:
        """The reasoning block, with the new lines after it unless they may be content."""
        return self._reasoning_and_new_lines(thinking) if self.reader.answer else self.reasoning(thinking)

    def _reasoning_and_new_lines(self, thinking: bool) -> tuple[Node, ...]:
        """The reasoning block with the new lines after it."""
        after = _new_lines(self.reader.after_think_end)
        match self.reasoning(thinking):
            case (Maybe(block),):
                return (Maybe(Concat((block, *after))),)
            case ():
                return ()
            case nodes:
                return (*nodes, *after)

    # -- parts --------------------------------------------------------------------------------------------------------

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        """The part of the reasoning block that the model writes."""
        fmt, reader = self.format, self.reader
        if not thinking or fmt.reasoning == "none":
            return ()
        opener, closer = reader.think.strip(), reader.think_end.strip()
        opens, closes = self.mark(opener), self.mark(closer)
        if _begins_with_token(closes):
            block: Node = Concat((FreeText(), closes))
        elif closer.startswith("<"):
            block = TextUntil(closer, (closer,))
        else:
            return ()  # the block is part of the text before the calls
        if fmt.reasoning == "opened":
            return (block,)
        if not isinstance(opens, ExactText) or not _begins_with_token(closes):
            newlines = (Maybe(ExactText("\n" * reader.before_think)),) if reader.before_think else ()
            block = Concat((*newlines, opens, block))
            if reader.lone_think_end:
                block = Choice((block, closes))
        # else an opener of ordinary text is part of the free text that the closing token ends
        return (Maybe(block),)

    def content(self) -> Node:
        """Content before calls. It contains nothing that the reader takes for a call."""
        openers = self.text_openers
        return self.free_content(TextUntil("", without=openers) if openers else FreeText())

    @property
    def text_openers(self) -> tuple[str, ...]:
        """The ordinary texts that begin calls wherever they stand in content: of several tags, the first."""
        openers = (opener.lstrip() for opener in self.reader.text_openers)
        return tuple(dict.fromkeys(opener[:1] + opener[1:].partition("<")[0].rstrip() for opener in openers))

    @property
    def _text_marks(self) -> tuple[str, ...]:
        """The marks of reasoning that are ordinary text."""
        marks = self.reader.think.strip(), self.reader.think_end.strip()
        in_no_tags = self.format.reasoning != "none" and self.format.reasoning_tags is None
        if in_no_tags or not all(mark.startswith("<") for mark in marks):
            return ()
        return tuple(mark for mark in marks if isinstance(self.mark(mark), ExactText))

    def free_content(self, text: Node) -> Node:
        """Content that may be empty, and then has no markers."""
        return Maybe(self.answer_block(text)) if self.reader.answer else text

    def answer_block(self, content: Node) -> Node:
        """Content with the family's markers around it, if it has any."""
        reader = self.reader
        if not reader.answer:
            return content
        closer = reader.answer_end.lstrip()
        before_closer = _new_lines(len(reader.answer_end) - len(closer))
        inside = (*_new_lines(reader.after_answer), content, *before_closer)
        return Concat((self.mark(reader.answer), *inside, self.mark(closer), *_new_lines(reader.after_answer_end)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        """A section of one call, or of several if `parallel`. Raises `InvalidRequest` if there is no such grammar."""
        slots = (self.slots(index, tool) for index, tool in tools.items())
        try:
            return self._envelope.section(slots, parallel=parallel)
        except (call_envelope.NoGrammarError, RenderError):
            raise InvalidRequest(
                f"calls of {self.format.name} cannot be constrained yet: ask for strict=off, tool_choice=auto, parallel"
                " calls and no response_format, or for no tools"
            ) from None

    @property
    def new_lines_before_calls(self) -> int:
        """How many new lines the family writes before calls, besides those that belong to reasoning."""
        return self._envelope.new_lines_before

    def after_calls(self) -> Node | None:
        """What may follow calls that are required, several of which may come; the reader drops it. None: nothing.

        Calls in a section are over at its end. Otherwise a model that wants to write something else than another call
        would have to repeat itself until its limit.
        """
        return TEXT_AFTER_CALLS if self._envelope.is_open else None

    @functools.cached_property
    def _envelope(self) -> CallEnvelope:
        reader = functools.partial(self.format.reader, thinking=False)
        return CallEnvelope(Family(self._indexed, self.format.end_of_turn, reader, self.attribute, self.text_openers))

    def structured(self, requested: ResponseFormat) -> Node:
        """Content of a response format. Its keys come in the order in which the prompt shows them, if it shows them."""
        shown = "response_format" in self.format.template_options
        schema = self.format.shown_order(requested.schema) if shown else requested.schema
        return JsonSchema(schema, requested.origin)

    def slots(self, index: int, tool: Tool) -> dict[str, Node]:
        """The grammar for each placeholder of a written call."""
        return {
            call_envelope.ID: self.call_id(tool.name),
            call_envelope.NAME: ExactText(self.attribute(tool.name)),
            call_envelope.ARGUMENTS: self.arguments(index, tool),
        }

    def arguments(self, index: int, tool: Tool) -> Node:
        """The grammar of a call's arguments: a `JsonSchema`, unless the tool has a grammar of its own."""
        if tool.grammar is not None:
            return self.custom_input(ClientGrammar(tool.grammar, tool.grammar_field))
        schema = self.format.shown_order({**(tool.parameters or {}), "type": "object"})
        return JsonSchema(schema, tool.schema_field)

    def custom_input(self, grammar: ClientGrammar) -> Node:
        """The arguments of a call to a custom tool with a grammar."""
        markup = self._envelope.markup
        return grammar.in_json() if markup is None else grammar.in_tags(markup)

    def call_id(self, name: str) -> Node:
        """The id of a call to the tool `name`, in families that write one."""
        return ExactText("")

    def attribute(self, name: str) -> str:
        """A tool's or a parameter's name as it is written in a call."""
        return name

    def mark(self, literal: str) -> Node:
        return self.format.mark(literal)

    def _indexed(self, message: Message) -> Prompt:
        return self.format.in_known_tokens(self.write_indexed(message))

    def write_indexed(self, message: Message) -> Prompt:
        """`Format.write` without reasoning, and with `call_envelope.INDEX` as the index of each call."""
        return self.format.write(message, thinking=False)


def _new_lines(most: int) -> tuple[Node, ...]:
    return (Maybe(Regex(rf"\n{{1,{most}}}")),) if most else ()


def _begins_with_token(marker: Node) -> bool:
    return isinstance(marker.items[0] if isinstance(marker, Concat) else marker, ControlToken)
