"""`Format`: one model family's language. It renders prompts, repairs histories, reads, writes and constrains answers.

A family is one file with a subclass of `Format`, most often of `DeclaredFormat`. No code outside of this folder knows a
model by name.
"""

from __future__ import annotations

import copy
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

from dovetail import conversation as checked
from dovetail.conversation import check_renderable, deepest
from dovetail.custom_tools import as_functions, with_functions
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.events import Message, fold
from dovetail.formats.answers.answer_grammar import AnswerGrammar
from dovetail.formats.answers.tool_choice import Strict, requires_call
from dovetail.formats.prompts import continuing, history
from dovetail.formats.prompts.history import UNMARKED_CALL, HistoryRules, Repair, Repaired
from dovetail.formats.turn import Turn
from dovetail.grammar import Concat, ControlToken, ExactText, Grammar, Node
from dovetail.grammar.bounded_reasoning import Markers
from dovetail.reading import CallReader, OnMalformedCall, Reader, ReaderOptions
from dovetail.tokens import Prompt, Segment, Tokenizer, raw_prompt

#: The prompt opens the reasoning block, or the model writes all of it, or the model does not reason.
ReasoningBlock = Literal["opened", "written", "none"]
#: Texts that no answer has: noncharacters.
_THOUGHT, _ANSWER = "\ufdd1\ufddd", "\ufdd1\ufdde"
Messages = Sequence[Mapping[str, Any]]
#: As an OpenAI client sends them, or checked.
Tools = Sequence[Mapping[str, Any]] | checked.Tools | None


def as_sent(schema: Any) -> Any:
    return schema


class EngineParsers(NamedTuple):
    """The names of another engine's own parsers for a format, as its command line takes them; None: it has none."""

    calls: str
    reasoning: str | None = None
    #: The name of a tokenizer mode, which only TensorRT-LLM has.
    tokenizer: str | None = None


class Format(ABC):
    """One model family's language. Instances do not change and may be shared between threads."""

    name: str
    #: Why a checkpoint is read by this format; "" for a format that was chosen by name.
    because: str = ""
    #: What `repair` changes in a history.
    history_rules: HistoryRules = HistoryRules()
    #: Options of `render` beyond the common ones. Any other option is refused by name.
    template_options: tuple[str, ...] = ()
    #: The levels of `reasoning_effort` that the model knows, from the least; empty: it has no such option, or which
    #: levels there are is not known.
    efforts: tuple[str, ...] = ()
    #: The control token that stands for a picture in a prompt; None: the model sees no pictures.
    picture: str | None = None
    #: Whether answers may hold tool calls that the format reads.
    reads_calls: bool = True
    #: Who opens the reasoning block.
    reasoning: ReasoningBlock = "opened"
    #: Literals of the control tokens that end the assistant's turn.
    end_of_turn: tuple[str, ...]
    #: Control tokens that templates write after an answer, and after which the turn may go on.
    inside_turns: tuple[str, ...] = ()
    #: Parsers of other engines that read this format, for the commands that `dovetail plan --emit` writes.
    vllm_parsers: EngineParsers | None = None
    sglang_parsers: EngineParsers | None = None
    trtllm_parsers: EngineParsers | None = None
    #: Reads the family's outputs.
    reader_type: type[CallReader]
    #: The control tokens of the model's tokenizer; None: it has all of the family's.
    _tokenizer_controls: frozenset[str] | None = None
    #: Reorders the keys of a schema as the prompt shows them to the model, which then writes them in that order.
    shown_order: Callable[[Any], Any] = staticmethod(as_sent)

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
        shown_order: Callable[[Any], Any],
    ) -> Self:
        """This family for a model that has a chat template and a tokenizer of its own.

        Control tokens that the tokenizer lacks are text.
        """
        family = type(self)()
        family.name, family.template_options = name, template_options
        family.reasoning, family.end_of_turn, family.reader_type = reasoning, end_of_turn, reader
        family._tokenizer_controls, family.shown_order = tokenizer_controls, shown_order
        return family

    def spelled_for(self, controls: Container[str]) -> Self:
        """This format for a tokenizer with these control tokens, if tokenizers have other names for one of its own."""
        return self

    def has_token(self, control: str) -> bool:
        """Whether the model's tokenizer has this control token of the family; otherwise it is text."""
        return self._tokenizer_controls is None or control in self._tokenizer_controls

    @classmethod
    def renders(cls) -> bool:
        """Whether the family writes prompts itself. The prompts of the others come from a checkpoint's template."""
        return cls._render is not Format._render

    def because_of(self, reason: str) -> Self:
        """A copy of the format with the reason why a checkpoint is read by it."""
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

        A custom tool is shown as a function with one string parameter.
        `thinking`: whether the model may reason. False closes a reasoning block that the prompt opens.
        `add_generation_prompt`: whether the prompt opens the assistant's next turn.
        `continue_final_message`: leaves the last message open, so that the model continues it. It requires
        `add_generation_prompt=False`.

        Raises `InvalidRequest` for an option that the format does not have, and for messages or tools of a wrong shape;
        `RenderError` for a conversation that the format cannot write.
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
                    "continue_final_message continues the last message and add_generation_prompt begins another: "
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
            shown, functions = with_functions(messages), as_functions(tools or ())
            prompt = self._render(shown, functions, thinking, open_turn, **options)
            if not prompt.text.isascii():
                "".join(prompt.pieces[::2]).encode()  # fails for a text with half of a surrogate pair
        except DovetailError:
            raise
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # Renderers expect messages of the right shape. They are checked only after a renderer has failed.
            check_renderable(messages, tools, options)
            if isinstance(error, RecursionError):
                where = deepest(messages, tools, options)
                raise RenderError(f"{where} is nested too deeply for {self.name}", param=where) from error
            raise RenderError(f"{self.name} cannot write this conversation: {error}") from error
        return prompt

    def __repr__(self) -> str:
        return f"<format {self.name}>"

    @property
    def is_native(self) -> bool:
        """Whether it writes prompts itself, without a chat template."""
        return type(self)._render is not Format._render

    def _render(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]], thinking: bool, open_turn: bool, **options: Any
    ) -> Prompt:
        """The prompt. May raise any usual exception if messages or tools have a wrong shape."""
        raise RenderError(f"{self.name} reads outputs, but its prompts come from the model's own chat template")

    @property
    def reasoning_tags(self) -> tuple[str, str] | None:
        """The opening and closing tags of a reasoning block, without newlines; None if there are no blocks in tags."""
        if self.reasoning == "none":
            return None
        return self.reader_type.think.strip(), self.reader_type.think_end.strip()

    @property
    def reasoning_markers(self) -> tuple[str, str] | None:
        """The same; None if they are no control tokens."""
        tags = self.reasoning_tags
        return tags if tags is not None and any(c in tags[0] for c in self.reader_type.controls) else None

    @property
    def closable_markers(self) -> tuple[str, str] | None:
        """The same; None also if the closing tag is more than one control token."""
        markers = self.reasoning_markers
        return markers if markers is not None and markers[1] in self.reader_type.controls else None

    @property
    def _reasoning_ends(self) -> tuple[str, str] | None:
        """What comes before and after reasoning, with control tokens by their literals; None if text does."""
        return self.reasoning_markers

    def reasoning_tokens(self, tokenizer: Tokenizer) -> Markers | None:
        """The tokens before and after reasoning; None if there is no control token after it."""
        if self._reasoning_ends is None:
            return None
        prompts = (raw_prompt(marker, tokenizer, prefix=False, controls=True) for marker in self._reasoning_ends)
        opening, closing = (tuple(prompt.ids(tokenizer)) for prompt in prompts)
        return Markers(opening, closing) if closing[0] in tokenizer.control_literals else None

    def end_of_reasoning(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The tokens between reasoning and where an answer without reasoning begins; none if there is no reasoning."""
        reasoned = self.write(Message(_ANSWER, _THOUGHT)).text.partition(_THOUGHT)[2]
        plain = self.write(Message(_ANSWER), thinking=False).text
        return tuple(raw_prompt(reasoned.removesuffix(plain), tokenizer, prefix=False, controls=True).ids(tokenizer))

    def left_open(self, prompt: Prompt) -> bool:
        """Whether `prompt` ends inside a reasoning block. The reader of the answer needs this as `thinking`."""
        opener = self.reader_type.think.strip()
        closers = (self.reader_type.think_end.strip(), *self.end_of_turn)
        # Only control tokens count, with the text after them if it is part of the opener. Text that spells them opens
        # and closes nothing.
        pieces = [*prompt.pieces, ""]  # text and control tokens in turn
        for at in reversed(range(1, len(prompt.pieces), 2)):
            control, text = pieces[at], pieces[at + 1]
            if opener.startswith(control) and (control + text).startswith(opener):
                return True
            if control in closers:
                return False
        return False

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
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        off: Iterable[str] = (),
    ) -> tuple[list[dict[str, Any]], list[Repair]]:
        """The history in the form that the model was trained on, and a list of the changes.

        `messages` are not modified.
        `off`: kinds of repair (`history.KINDS`) to leave out.

        Raises `InvalidRequest` naming the field for a history that cannot be repaired, and for an unknown kind.
        """
        repaired = self.repaired(messages, tools, off=off)
        return repaired.messages, repaired.repairs

    def repaired(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        off: Iterable[str] = (),
        verbatim: Mapping[int, str] = MappingProxyType({}),
    ) -> Repaired:
        """The same, and the places of the client's messages in the repaired history.

        `verbatim`: answers that go into the prompt as the model wrote them (`splicing`), by their messages' numbers.
        """
        return history.repaired(with_functions(messages), self.history_rules, off, verbatim)

    def turn(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        tool_choice: Any = "auto",
        thinking: bool = True,
        continue_final_message: bool = False,
        response_format: Any = None,
        parallel_tool_calls: bool = True,
        no_repair: Iterable[str] = (),
        on_malformed_call: OnMalformedCall = "error",
        **template_options: Any,
    ) -> Turn:
        """The turn of a request: its history is repaired and rendered.

        `tools`, `tool_choice`, `response_format`, `parallel_tool_calls`: OpenAI's fields. A format whose prompts show
        the choice or the response format gets them. `no_repair`: kinds of repair to leave out. `on_malformed_call`: as
        in `reader`. The other options are `render`'s, and so are the errors.
        """
        no_repair = tuple(no_repair)
        fields = {"tool_choice": None if tool_choice == "auto" else tool_choice, "response_format": response_format}
        shown = {name: value for name, value in fields.items() if value is not None and name in self.template_options}
        repaired, repairs = self.repair(messages, tools, off=no_repair)
        prompt = self.render(
            repaired,
            tools,
            thinking=thinking,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
            **shown | template_options,
        )
        return Turn(
            self,
            prompt,
            tuple(repairs),
            tools=tools,
            tool_choice=tool_choice,
            thinking=thinking,
            continues=continue_final_message,
            response_format=response_format,
            parallel_tool_calls=parallel_tool_calls,
            on_malformed_call=on_malformed_call,
            bare_calls=UNMARKED_CALL not in no_repair,
        )

    def template_variables(self, tools: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
        """The variables that the model's own code passes to its chat template, besides messages and options."""
        return {}

    @abstractmethod
    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """The text that the model would generate for `message`, including the end of the turn."""

    def forms(self, message: Message, *, thinking: bool = True) -> Iterator[Prompt]:
        """`message` in each way in which models of the family write it; the first is `write`'s."""
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
        on_malformed_call: OnMalformedCall = "error",
        bare_calls: bool = True,
    ) -> Reader:
        """A reader of one answer, which is fed piece by piece.

        `tools`: the request's tools. Tools of a wrong shape are ignored.
        `thinking`: whether the prompt left a reasoning block open; None: what the family's own prompts do.
        `tool_choice`: with "none", the answer contains no calls. With "required" or a named tool, it is over at text
        after a call, and at a call that repeats the one before it (`reading.required_calls`).
        `tokenizer`: needed to feed token ids.
        `repair_arguments`: whether to close the strings and brackets that a cut-off call left open, if that makes its
        arguments JSON. Without it, such a call stays as it is.
        `call_prefix`: with a number, the id of a call in families whose calls have no ids.
        `structured`: whether the content follows a response format. Ordinary text in it is never a call.
        `on_malformed_call`: what becomes of a call that names a tool and cannot be read: with "error", a call whose
        arguments have its text under the key `reading.MALFORMED`; with "text", content.
        `bare_calls`: whether an answer that is nothing but the JSON of a call to one of the tools is that call.
        """
        if thinking is None:
            thinking = self.reasoning == "opened"
        calls = tool_choice != "none"
        options = ReaderOptions(
            parameters_by_name(tools),
            thinking,
            calls,
            repair_arguments,
            call_prefix,
            structured,
            requires_call(tool_choice),
            on_malformed_call,
            bare_calls,
        )
        return self.reader_type(options, tokenizer)

    def parse(
        self,
        text: str,
        tools: Tools = None,
        *,
        thinking: bool | None = None,
        tool_choice: Any = "auto",
        repair_arguments: bool = False,
        on_malformed_call: OnMalformedCall = "error",
        bare_calls: bool = True,
        reason: str = "stop",
    ) -> Message:
        """A whole output as a message. `reason`: why the engine stopped; see `Reader.finish`.

        `thinking`: whether the prompt left a reasoning block open; None: what the family's own prompts do. `Turn.parse`
        knows it from the prompt. Without a prompt, an output that would be nothing but reasoning is content, unless
        `thinking` is True and the family's prompts open the block, or the output mentions a call.
        """

        def read(thinking: bool | None) -> Message:
            reader = self.reader(
                tools,
                thinking=thinking,
                tool_choice=tool_choice,
                repair_arguments=repair_arguments,
                on_malformed_call=on_malformed_call,
                bare_calls=bare_calls,
            )
            return fold([*reader.feed(text), *reader.finish(reason)])

        message = read(thinking)
        certain = thinking is False or (thinking and self.reasoning == "opened")
        if certain or message.content or message.calls or self.reader_type.think_end.strip() in text:
            return message
        without = read(False)
        return message if thinking and without.calls else without  # reasoning may mention a call

    def grammar(
        self,
        tools: Tools = None,
        *,
        tool_choice: Any = "auto",
        strict: Strict = "schema",
        thinking: bool = True,
        parallel_tool_calls: bool = True,
        response_format: Any = None,
        silent: bool = False,
    ) -> Grammar | None:
        """The grammar of the answers that a request allows; None if it allows any text.

        `strict`: what is enforced for tools without a `strict` of their own. "names" enforces the layout of calls,
        their ids and the tools' names, "schema" the arguments as well, "off" nothing. A tool's own `strict: true` means
        "schema", its `false` at most "names".
        `tool_choice`, `parallel_tool_calls`, `response_format`: OpenAI's fields. They are enforced at any level,
        together with the names. With a `response_format`, an answer is calls or content of that format.
        `thinking`: whether the answer may begin with reasoning; see `may_reason`.
        `silent`: whether the answer may end without a call and without a character of content that a reader can see.

        Raises `InvalidRequest` naming the field for a value that does not have OpenAI's shape, and for a choice of a
        tool that the request does not have.
        """
        return self._answer_grammar.for_request(
            tools,
            tool_choice=tool_choice,
            strict=strict,
            thinking=thinking,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
            silent=silent,
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
        """A marker of the family in a grammar: control tokens, perhaps with text among them. What the model's tokenizer
        does not have is text."""
        known = self.reader_type.controls if self._tokenizer_controls is None else self._tokenizer_controls
        if literal in known:
            return ControlToken(literal)
        controls = "|".join(re.escape(control) for control in self.reader_type.controls if control in known)
        pieces = re.split(f"({controls or '(?!)'})", literal)
        nodes = [ControlToken(piece) if i % 2 else ExactText(piece) for i, piece in enumerate(pieces) if piece]
        return nodes[0] if len(nodes) == 1 else Concat(tuple(nodes))


def parameters_by_name(tools: Any) -> dict[str, Any]:
    """The schema of the parameters of each tool, by the tool's name. Tools of a wrong shape are left out."""
    if isinstance(tools, checked.Tools):
        return {tool.name: tool.parameters for tool in tools}
    schemas: dict[str, Any] = {}
    for tool in as_functions(tools) if isinstance(tools, Sequence) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schemas[function["name"]] = function.get("parameters")
    return schemas
