"""`AnswerGrammar`: what a model of one format may answer to a request: reasoning, then content or calls.

A family whose answers have another shape subclasses it and overrides the part that differs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.conversation import Message, ResponseFormat, Tool, check_response_format, check_tools
from dovetail.errors import InvalidRequest, RenderError
from dovetail.formats import call_envelope
from dovetail.formats.call_envelope import CallEnvelope, Family
from dovetail.formats.tool_choice import Strict, enforceable, resolve_tool_choice
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
)
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.repair import Budget
from dovetail.tokens import Prompt

if TYPE_CHECKING:
    from dovetail.formats.base import Format

#: Families put different numbers of new lines between reasoning and calls. In front of JSON there are none.
_NEW_LINES = Regex(r"\n{1,3}")


class AnswerGrammar:
    def __init__(self, fmt: Format) -> None:
        self.format = fmt
        self.reader = fmt._reader

    def for_request(
        self,
        tools: Any,
        *,
        tool_choice: Any,
        strict: Strict,
        thinking: bool,
        parallel_tool_calls: bool,
        response_format: Any,
    ) -> Grammar | None:
        """See `Format.grammar`."""
        declared = check_tools(tools)
        choice, allowed = resolve_tool_choice(tool_choice, declared)
        requested = check_response_format(response_format)
        more_than_auto = requested is not None or tool_choice not in (None, "auto") or not parallel_tool_calls
        budget = Budget()
        enforced = {i: enforceable(tool, strict, budget) for i, tool in allowed.items()}
        callable_tools = {i: tool for i, (tool, _) in enforced.items()}
        if strict == "off" and not more_than_auto and not any(tool.strict for tool in allowed.values()):
            return None
        # The bounds are checked before a family takes the schemas apart.
        schemas = [
            JsonSchema(tool.parameters, f"tools[{i}].function.parameters")
            for i, tool in callable_tools.items()
            if tool.parameters is not None
        ]
        if requested is not None:
            schemas.append(JsonSchema(requested.schema, requested.origin))
        bounds.check_once(schemas)
        if requested is not None:
            may_call = callable_tools and choice != "none"
            calls = self.calls(callable_tools, parallel_tool_calls) if may_call else None
            content = None if choice == "required" else self.structured(requested)
            grammar = self.calls_or_structured(calls, content, thinking)
        elif not declared:
            return None
        elif choice == "none":
            return self.content_only(thinking)
        else:
            others = [tool.name for i, tool in enumerate(declared) if i not in callable_tools]
            grammar = self.answer(callable_tools, choice == "required", thinking, parallel_tool_calls, others)
        for i, (_, left_out) in enforced.items():
            if left_out:
                grammar = Grammar(Loosened(grammar.root, f"tools[{i}].function.parameters", tuple(left_out)))
        return grammar

    # -- whole answers ------------------------------------------------------------------------------------------------

    def answer(
        self, tools: Mapping[int, Tool], required: bool, thinking: bool, parallel: bool, others: Sequence[str]
    ) -> Grammar:
        """Content, calls, or both.

        `tools`: the tools that may be called, by index in the request; their `parameters` are what is enforced.
        `others`: the names of the tools that may not be called.
        """
        section = self.calls(tools, parallel)
        calls = call_envelope.after_text(self.content(), section, required=required)
        return Grammar(Concat((*self.reasoning(thinking), calls)))

    def content_only(self, thinking: bool) -> Grammar:
        return Grammar(Concat((*self.reasoning(thinking), self.free_content(FreeText()))))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        """Calls or content of a response format, with no other text. None: the answer cannot be that."""
        blocks = (calls, content and self.answer_block(content))
        either = tuple(node for node in blocks if node is not None)
        return Grammar(Concat((*self.reasoning(thinking), Maybe(_NEW_LINES), Choice(either))))

    # -- parts --------------------------------------------------------------------------------------------------------

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        """The part of the reasoning block that the model writes."""
        fmt, reader = self.format, self.reader
        if not thinking or fmt.reasoning == "none":
            return ()
        opener, closer = reader.think.strip(), reader.think_end.strip()
        opens, closes = self.mark(opener), self.mark(closer)
        if isinstance(closes, ControlToken):
            block: Node = Concat((FreeText(), closes))
        elif closer.startswith("<"):
            block = TextUntil(closer, (closer,))
        else:
            return ()  # the block is part of the text before the calls
        if fmt.reasoning == "opened":
            return (block,)
        if isinstance(opens, ControlToken) or not isinstance(closes, ControlToken):
            newlines = (Maybe(ExactText("\n" * reader.before_think)),) if reader.before_think else ()
            block = Concat((*newlines, opens, block))
        # else an opener of ordinary text is part of the free text that the closing token ends
        return (Maybe(block),)

    def content(self) -> Node:
        """Content before calls. It contains nothing that the reader takes for a call."""
        openers = self.reader.text_openers
        return self.free_content(TextUntil("", without=openers) if openers else FreeText())

    def free_content(self, text: Node) -> Node:
        """Content that may be empty, and then has no markers."""
        return Maybe(self.answer_block(text)) if self.reader.answer else text

    def answer_block(self, content: Node) -> Node:
        """Content with the family's markers around it, if it has any."""
        reader = self.reader
        if not reader.answer:
            return content
        return Concat((self.mark(reader.answer), content, self.mark(reader.answer_end)))

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

    @functools.cached_property
    def _envelope(self) -> CallEnvelope:
        reader = functools.partial(self.format.reader, thinking=False)
        return CallEnvelope(Family(self._indexed, self.format.end_of_turn, reader, self.attribute))

    def structured(self, requested: ResponseFormat) -> Node:
        """Content of a response format. Its keys come in the order in which the prompt shows them, if it shows them."""
        shown = "response_format" in self.format.template_options
        schema = self.format.shown_order(requested.schema) if shown else requested.schema
        return JsonSchema(schema, requested.origin)

    def slots(self, index: int, tool: Tool) -> dict[str, Node]:
        """The grammar for each placeholder of a written call."""
        schema = self.format.shown_order({**(tool.parameters or {}), "type": "object"})
        return {
            call_envelope.ID: self.call_id(tool.name),
            call_envelope.NAME: ExactText(self.attribute(tool.name)),
            call_envelope.ARGUMENTS: JsonSchema(schema, f"tools[{index}].function.parameters"),
        }

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
