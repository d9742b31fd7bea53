"""What a model's language is made of: `Format` renders, repairs, reads, writes and constrains, from one set of markers.

A family is one file that subclasses `Format`. Nothing outside this folder knows a model by name.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from dovetail.conversation import Message, check_renderable, deepest
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.events import fold
from dovetail.formats import continuing, history
from dovetail.formats.answer_grammar import AnswerGrammar
from dovetail.formats.history import HistoryRules, Repair
from dovetail.formats.tool_choice import Strict
from dovetail.grammar import ControlToken, ExactText, Grammar, Node
from dovetail.reading import CallReader, Reader, ReaderOptions
from dovetail.tokens import Prompt, Segment, Tokenizer

#: The generation prompt opens it, or the model writes all of it, or there is none.
ReasoningBlock = Literal["opened", "written", "none"]
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


def _as_sent(schema: Any) -> Any:
    return schema


class EngineParsers(NamedTuple):
    """The names of another engine's own parsers for a format, as its command line takes them; None: it has none."""

    calls: str
    reasoning: str | None = None
    #: The name of a tokenizer mode, which only TensorRT-LLM has.
    tokenizer: str | None = None


class Format(ABC):
    """Both ends of a model's language. Instances are stateless and may be shared between threads."""

    name: str
    #: Why it is this format, when a checkpoint was looked at.
    because: str = ""
    #: What `repair` makes of a history.
    history_rules: HistoryRules = HistoryRules()
    #: Options of `render` beyond the common ones; any other is refused by name.
    template_options: tuple[str, ...] = ()
    #: Who begins a reasoning block.
    reasoning: ReasoningBlock = "opened"
    #: Literals of the control tokens that end the assistant's turn.
    end_of_turn: tuple[str, ...]
    #: Parsers of other engines that read this format, for the commands that `dovetail plan --emit` writes.
    vllm_parsers: EngineParsers | None = None
    sglang_parsers: EngineParsers | None = None
    trtllm_parsers: EngineParsers | None = None
    _reader: type[CallReader]
    #: The control tokens of the model's tokenizer; None: it has all of the family's.
    _tokenizer_controls: frozenset[str] | None = None
    #: Reorders the keys of a schema as the prompt shows them to the model, which then writes them in that order.
    shown_order: Callable[[Any], Any] = staticmethod(_as_sent)

    _answers: type[AnswerGrammar] = AnswerGrammar

    def adapted(
        self,
        *,
        name: str,
        template_options: tuple[str, ...],
        reasoning: ReasoningBlock,
        end_of_turn: tuple[str, ...],
        reader: type[CallReader],
        tokenizer_controls: frozenset[str],
    ) -> Self:
        """This family for a model that has a chat template and a tokenizer of its own.

        The template shows schemas as the client sent them. Control tokens that the tokenizer lacks are text.
        """
        family = type(self)()
        family.name, family.template_options = name, template_options
        family.reasoning, family.end_of_turn, family._reader = reasoning, end_of_turn, reader
        family._tokenizer_controls, family.shown_order = tokenizer_controls, _as_sent
        return family

    def because_of(self, reason: str) -> Self:
        """The same format, with the reason why a checkpoint is read by it."""
        explained = copy.copy(self)
        explained.because = reason
        return explained

    def render(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        thinking: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_options: Any,
    ) -> Prompt:
        """The prompt for OpenAI-shaped messages and tools, exactly as the model's own template writes it.

        `thinking` lets the model reason: where the generation prompt opens a reasoning block, False closes it at once.
        `continue_final_message` leaves the last message open for the model to go on with, and needs
        `add_generation_prompt` to be False. Raises `InvalidRequest` for an option that the format does not declare,
        and for messages or tools of a wrong shape; `RenderError` for what the format cannot write.
        """
        for option in template_options:
            if option not in self.template_options:
                known = ", ".join(("thinking", *self.template_options))
                raise InvalidRequest(
                    f"{self.name} has no template option {option!r:.80}; it has {known}",
                    param=f"chat_template_kwargs.{option}",
                )
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message goes on with the last message, add_generation_prompt begins another: "
                    "set one of them to false",
                    param="continue_final_message",
                )
            marked, mark, rest = continuing.marked(messages, self.history_rules.reasoning_field)
            return continuing.cut(self._render_checked(marked, tools, thinking, False, template_options), mark, rest)
        return self._render_checked(messages, tools, thinking, add_generation_prompt, template_options)

    def _render_checked(
        self, messages: Messages, tools: Tools, thinking: bool, open_turn: bool, options: Mapping[str, Any]
    ) -> Prompt:
        try:
            prompt = self._render(messages, tools or (), thinking, open_turn, **options)
            if not prompt.text.isascii():
                "".join(prompt.pieces[::2]).encode()  # control tokens are Unicode; a text may hold half a character
        except DovetailError:
            raise
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # Renderers take messages to be well formed, which is looked into only when one could not go on.
            check_renderable(messages, tools, options)
            if isinstance(error, RecursionError):
                where = deepest(messages, tools, options)
                raise RenderError(f"{where} is nested too deeply for {self.name}", param=where) from error
            raise RenderError(f"{self.name} cannot write this conversation: {error}") from error
        return prompt

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        """The prompt. May raise any usual exception when messages or tools have a wrong shape."""
        raise RenderError(f"{self.name} reads outputs, but its prompts come from the model's own chat template")

    @property
    def reasoning_markers(self) -> tuple[str, str] | None:
        """What opens and what closes a reasoning block, without newlines; None where no control token does."""
        opener, closer = self._reader.think.strip(), self._reader.think_end.strip()
        if self.reasoning == "none" or not any(literal in opener for literal in self._reader.controls):
            return None
        return opener, closer

    def left_open(self, prompt: Prompt) -> bool:
        """Whether `prompt` ends inside a reasoning block: what a reader of the answer has to be told as `thinking`."""
        opener = self._reader.think.strip()
        closers = (self._reader.think_end.strip(), *self.end_of_turn)
        # Text that spells these control tokens opens and closes nothing.
        said = (piece == opener for piece in reversed(prompt.pieces[1::2]) if piece == opener or piece in closers)
        return next(said, False)

    def may_reason(self, left_open: bool, *, thinking: bool, continues: bool) -> bool:
        """Whether the answer to a prompt may begin with reasoning.

        `left_open`: whether the prompt ends inside a reasoning block.
        `thinking`: whether the request lets the model reason.
        `continues`: whether the prompt ends in an answer that the model is to continue.
        """
        if self.reasoning == "written":  # the model opens the block, at the beginning of an answer only
            return thinking and not continues
        return left_open and self.reasoning == "opened"

    def repair(
        self, messages: Messages, tools: Tools = None, *, off: Iterable[str] = ()
    ) -> tuple[list[dict[str, Any]], list[Repair]]:
        """A history as the model was trained on it, and what was changed for that. Pure; `messages` stay as they are.

        `off` names kinds of repair (`history.KINDS`) that are left alone. Raises `InvalidRequest` naming the field for
        a history that cannot be put right, and for a kind that there is not.
        """
        return history.repair(messages, self.history_rules, off)

    def template_variables(self, tools: Tools) -> Mapping[str, Any]:
        """What the model's own code gives its chat template beside the conversation and its options."""
        return {}

    @abstractmethod
    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """What the model itself would emit to say `message` after a generation prompt, end of turn included."""

    def forms(self, message: Message, *, thinking: bool = True) -> Iterator[Prompt]:
        """`message` in each way in which models of the family write it; the first is that of `write`."""
        yield self.write(message, thinking=thinking)

    def reader(
        self,
        tools: Tools = None,
        *,
        thinking: bool | None = None,
        tool_choice: Any = "auto",
        tokenizer: Tokenizer | None = None,
        repair_arguments: bool = False,
        call_prefix: str = "call_",
        structured: bool = False,
    ) -> Reader:
        """A stream reader. With `tokenizer`, ids may be fed.

        `thinking`: the prompt left a reasoning block open; None: it did if the family's prompts do.

        `repair_arguments` closes the strings and brackets that a cut-off call left open, where that makes JSON of its
        arguments; without it such a call stays as it was cut. Where the family's calls have no ids of their own, they
        are `call_prefix` and a number. Where the content is held to a response format, it is `structured`: what looks
        like a call in it is none. Tools are taken as far as they are well formed.
        """
        if thinking is None:
            thinking = self.reasoning == "opened"
        calls = tool_choice != "none"
        options = ReaderOptions(parameters_by_name(tools), thinking, calls, repair_arguments, call_prefix, structured)
        return self._reader(options, tokenizer)

    def parse(
        self,
        text: str,
        tools: Tools = None,
        *,
        thinking: bool | None = None,
        tool_choice: Any = "auto",
        repair_arguments: bool = False,
        reason: str = "stop",
    ) -> Message:
        """A whole output as a message: through `reader` in one piece. `reason` is why the engine stopped."""
        reader = self.reader(tools, thinking=thinking, tool_choice=tool_choice, repair_arguments=repair_arguments)
        return fold([*reader.feed(text), *reader.finish(reason)])

    def grammar(
        self,
        tools: Tools = None,
        *,
        tool_choice: Any = "auto",
        strict: Strict = "schema",
        thinking: bool = True,
        parallel_tool_calls: bool = True,
        response_format: Any = None,
    ) -> Grammar | None:
        """What may come next, as data; None when there is nothing to constrain.

        `strict` is for tools that do not say `strict` themselves: "names" pins envelope, id and tool name, "schema" the
        arguments too, "off" nothing. A tool's own true is "schema", its false no more than "names". What OpenAI's other
        fields ask for is kept at any level, and names with it: a `tool_choice` that is more than "auto", one call at a
        time, and a `response_format`, with which an answer is calls or content of that format.

        Raises `InvalidRequest` naming the field for what has not OpenAI's shape, and for a choice of a tool that is
        not there.
        """
        return self._answer_grammar.for_request(
            tools,
            tool_choice=tool_choice,
            strict=strict,
            thinking=thinking,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
        )

    @functools.cached_property
    def _answer_grammar(self) -> AnswerGrammar:
        return self._answers(self)

    def in_known_tokens(self, prompt: Prompt) -> Prompt:
        """`prompt` with text in place of the control tokens that the model's tokenizer lacks."""
        if self._tokenizer_controls is None:
            return prompt
        known = self._tokenizer_controls.union(self.end_of_turn)
        return Prompt(Segment(text, control and text in known) for text, control in prompt.segments)

    def mark(self, literal: str) -> Node:
        """A marker of the family in a grammar: a control token, or text if the model's tokenizer has no such token."""
        known = self._reader.controls if self._tokenizer_controls is None else self._tokenizer_controls
        return ControlToken(literal) if literal in known else ExactText(literal)


def parameters_by_name(tools: Any) -> dict[str, Any]:
    """The parameters' schema of every tool that has a name."""
    found: dict[str, Any] = {}
    for tool in tools if isinstance(tools, Sequence) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found
