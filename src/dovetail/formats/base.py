"""What a model's language is made of: `Format` renders, repairs, reads, writes and constrains, from one set of markers.

A family is one file that subclasses `Format`. Nothing outside this folder knows a model by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dovetail.conversation import Message, Tool, check_renderable, check_tools, deepest
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.events import fold
from dovetail.formats import constraint, continuing, history
from dovetail.formats.history import Repair, Wants
from dovetail.grammar import Control, FreeText, Grammar, JsonSchema, Node, Optional
from dovetail.grammar import Literal as Exactly
from dovetail.grammar import Sequence as InOrder
from dovetail.reading import Asked, CallReader, Reader
from dovetail.tokens import Prompt, Tokenizer

Strict = Literal["off", "names", "schema"]
#: The generation prompt opens it, or the model writes all of it, or there is none.
ReasoningBlock = Literal["opened", "written", "none"]
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class Format(ABC):
    """Both ends of a model's language. Instances are stateless and may be shared between threads."""

    name: str
    #: Why it is this format, when a checkpoint was looked at.
    because: str = ""
    #: What `repair` makes of a history.
    wants: Wants = Wants()
    #: Options of `render` beyond the common ones; any other is refused by name.
    template_options: tuple[str, ...] = ()
    #: Who begins a reasoning block.
    reasoning: ReasoningBlock = "opened"
    #: Literals of the control tokens that end the assistant's turn.
    end_of_turn: tuple[str, ...]
    _reader: type[CallReader]

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
            marked, mark, rest = continuing.marked(messages, self.wants.reasoning_field)
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

    def repair(
        self, messages: Messages, tools: Tools = None, *, off: Iterable[str] = ()
    ) -> tuple[list[dict[str, Any]], list[Repair]]:
        """A history as the model was trained on it, and what was changed for that. Pure; `messages` stay as they are.

        `off` names kinds of repair (`history.KINDS`) that are left alone. Raises `InvalidRequest` naming the field for
        a history that cannot be put right, and for a kind that there is not.
        """
        return history.repair(messages, self.wants, off)

    def template_variables(self, tools: Tools) -> Mapping[str, Any]:
        """What the model's own code gives its chat template beside the conversation and its options."""
        return {}

    @abstractmethod
    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        """What the model itself would emit to say `message` after a generation prompt, end of turn included."""

    def reader(
        self,
        tools: Tools = None,
        *,
        thinking: bool | None = None,
        tool_choice: Any = "auto",
        tokenizer: Tokenizer | None = None,
        repair_arguments: bool = False,
        call_prefix: str = "call_",
    ) -> Reader:
        """A stream reader. With `tokenizer`, ids may be fed.

        `thinking`: the prompt left a reasoning block open; None: it did if the family's prompts do.

        `repair_arguments` closes the strings and brackets that a cut-off call left open, where that makes JSON of its
        arguments; without it such a call stays as it was cut. Where the family's calls have no ids of their own, they
        are `call_prefix` and a number. Tools are taken as far as they are well formed.
        """
        if thinking is None:
            thinking = self.reasoning == "opened"
        asked = Asked(parameters_by_name(tools), thinking, tool_choice != "none", repair_arguments, call_prefix)
        return self._reader(asked, tokenizer)

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
    ) -> Grammar | None:
        """What may come next, as data; None when there is nothing to constrain.

        `strict`: "names" pins envelope, id and tool name, "schema" the arguments too; "off" pins nothing, unless
        `tool_choice` is more than "auto", which cannot be kept without names. Raises `InvalidRequest` when
        `tool_choice` asks for a tool that is not there.
        """
        choice, allowed = resolve_tool_choice(tool_choice, check_tools(tools))
        if not tools or (strict == "off" and choice == "auto"):
            return None
        if choice == "none":
            return self._no_calls(thinking)
        return self._grammar(allowed, choice == "required", strict, thinking, parallel_tool_calls)

    def _grammar(
        self, tools: Mapping[int, Tool], required: bool, strict: Strict, thinking: bool, parallel: bool
    ) -> Grammar:
        """`tools` are those that may be called, by their index in the request."""
        section = self._calls_grammar(tools, strict, parallel)
        return Grammar(InOrder((*self._opening(thinking), section if required else Optional(section))))

    def _calls_grammar(self, tools: Mapping[int, Tool], strict: Strict, parallel: bool) -> Node:
        section = constraint.calls(
            lambda message: self.write(message, thinking=False),
            self.end_of_turn,
            (self._stands_for(index, tool, strict) for index, tool in tools.items()),
            parallel=parallel,
        )
        if section is None:
            raise InvalidRequest(f"{self.name} cannot be constrained yet: ask for strict=off and tool_choice=auto")
        return section

    def _no_calls(self, thinking: bool) -> Grammar:
        return Grammar(InOrder(self._opening(thinking)))

    def _opening(self, thinking: bool) -> tuple[Node, ...]:
        text = FreeText()
        if not thinking or self.reasoning == "none":
            return (text,)
        block: Node = InOrder((text, Control(self._reader.think_end.lstrip())))
        if self.reasoning == "written":
            block = Optional(InOrder((Control(self._reader.think), block)))
        return (block, text)

    def _stands_for(self, index: int, tool: Tool, strict: Strict) -> dict[str, Node]:
        schema = (tool.parameters or {}) if strict == "schema" else {}
        arguments = JsonSchema(
            self._declared_order({**schema, "type": "object"}), f"tools[{index}].function.parameters"
        )
        return {
            constraint.ID: self._id_grammar(tool.name),
            constraint.NAME: Exactly(tool.name),
            constraint.ARGUMENTS: arguments,
        }

    def _id_grammar(self, name: str) -> Node:
        """The id of a call, in families that write one; it is not looked at in others."""
        return Exactly("")

    def _declared_order(self, schema: Any) -> Any:
        """A schema with its keys in the order in which the prompt shows them to the model."""
        return schema


def parameters_by_name(tools: Any) -> dict[str, Any]:
    """The parameters' schema of every tool that has a name."""
    found: dict[str, Any] = {}
    for tool in tools if isinstance(tools, Sequence) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found


def resolve_tool_choice(
    tool_choice: Any, tools: Sequence[Tool]
) -> tuple[Literal["auto", "none", "required"], Mapping[int, Tool]]:
    """OpenAI's `tool_choice` (auto, none, required, one function) as a mode and the tools that may be called, by index.

    Raises `InvalidRequest` for another shape, or for a tool that is not there.
    """
    everything = dict(enumerate(tools))
    if tool_choice is None:
        tool_choice = "auto"
    if tool_choice in ("auto", "none", "required"):
        if tool_choice == "required" and not tools:
            raise InvalidRequest("tool_choice is 'required' but there are no tools", param="tool_choice")
        return tool_choice, everything
    named = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function" or not isinstance(name, str):
        raise InvalidRequest(
            'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}',
            param="tool_choice",
        )
    chosen = {index: tool for index, tool in everything.items() if tool.name == name}
    if not chosen:
        raise InvalidRequest(f"tool_choice names {name!r:.80}, which is not among the tools", param="tool_choice")
    return "required", chosen
