"""`Turn`: one request in one format. It has the prompt, the grammar of the answer, and the reader of the answer.

    turn = fmt.turn(messages, tools, thinking=True)
    ids = turn.prompt.ids(tokenizer)      # for the engine, with turn.grammar() as its constraint
    message = turn.parse(output)          # or turn.reader(tokenizer), piece by piece

Whether reasoning is open where the answer begins depends on the prompt and not on the request alone: a template may
ignore the switch, and an answer may be continued. A turn knows its prompt, so nobody has to say it again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.conversation import check_response_format
from dovetail.errors import InvalidRequest
from dovetail.events import Message, fold
from dovetail.formats.answers.tool_choice import Strict
from dovetail.formats.prompts.history import Repair
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, Grammar, Loosened, Maybe, Node
from dovetail.reading import OnMalformedCall, Reader
from dovetail.tokens import Prompt, Tokenizer

if TYPE_CHECKING:
    from dovetail.formats.base import Format, Tools


_NO_PROMPT = Prompt(())


@dataclass(frozen=True, eq=False, repr=False)
class Turn:
    """One request in one format; `Format.turn` makes it of messages and tools.

    `format`: the format.
    `prompt`: what the model is shown, if it is known.
    `repairs`: the changes that were made to the history.
    `tools`, `tool_choice`, `response_format`, `parallel_tool_calls`: OpenAI's fields.
    `thinking`: whether the request lets the model reason.
    `continues`: whether the prompt ends in an answer that the model is to continue.
    `on_malformed_call`, `bare_calls`: how calls are read; see `Format.reader`.
    `left_open`: whether the prompt ends inside a reasoning block; the prompt tells, if the caller does not.
    """

    format: Format
    prompt: Prompt = _NO_PROMPT
    repairs: tuple[Repair, ...] = ()
    tools: Tools = None
    tool_choice: Any = "auto"
    thinking: bool = True
    continues: bool = False
    response_format: Any = None
    parallel_tool_calls: bool = True
    on_malformed_call: OnMalformedCall = "error"
    bare_calls: bool = True
    left_open: bool = None  # type: ignore[assignment]  # set in __post_init__

    def __post_init__(self) -> None:
        if self.left_open is None:
            object.__setattr__(self, "left_open", self.format.left_open(self.prompt))

    @property
    def may_reason(self) -> bool:
        """Whether the answer may begin with reasoning."""
        return self.format.may_reason(self.left_open, thinking=self.thinking, continues=self.continues)

    @functools.cached_property
    def structured(self) -> bool:
        """Whether a response format constrains the content."""
        return check_response_format(self.response_format) is not None

    @property
    def is_free(self) -> bool:
        """Whether the answer is plain text, without tools and a response format."""
        return not self.tools and not self.structured and self.tool_choice in (None, "auto", "none")

    def grammar(self, strict: Strict = "schema", *, silent: bool = False) -> Grammar | None:
        """The grammar of the answer; None if it allows any text.

        `strict`: what is enforced for tools without a `strict` of their own; see `Format.grammar`. A turn without tools
        gets a grammar too: it keeps a call from beginning.
        `silent`: whether the answer may end without saying anything. One that goes on from content has said something.

        Raises `InvalidRequest` naming the field for a value that does not have OpenAI's shape, for a choice of a tool
        that the request does not have, and where the answer is constrained and cannot go on from this prompt;
        `SchemaRefused` for a schema that cannot be enforced and has to be.
        """
        grammar = self.format.grammar(
            self.tools,
            tool_choice="none" if self.is_free else self.tool_choice,
            strict=strict,
            thinking=self.may_reason,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self.response_format,
            silent=silent or (self.continues and not self.left_open),
        )
        if grammar is None or self._follows(grammar):
            return grammar
        if self.is_free:
            return None
        raise InvalidRequest(
            f"answers of {self.format.name} that go on from where this prompt ends cannot be constrained yet: "
            "leave out response_format, and leave out the tools or set dovetail.strict to off",
            param="continue_final_message" if self.continues else "dovetail.strict",
        )

    def reader(
        self, tokenizer: Tokenizer | None = None, *, call_prefix: str = "call_", repair_arguments: bool = False
    ) -> Reader:
        """A reader of one answer, which is fed piece by piece. `Format.reader` has the options."""
        return self.format.reader(
            self.tools,
            thinking=self.left_open,
            # Without tools, text that looks like a call is not one.
            tool_choice=self.tool_choice if self.tools else "none",
            tokenizer=tokenizer,
            call_prefix=call_prefix,
            repair_arguments=repair_arguments,
            structured=self.structured,
            on_malformed_call=self.on_malformed_call,
            bare_calls=self.bare_calls,
        )

    def parse(self, text: str, *, reason: str = "stop", repair_arguments: bool = False) -> Message:
        """A whole answer as a message. `reason`: why the engine stopped; see `Reader.finish`."""
        reader = self.reader(repair_arguments=repair_arguments)
        return fold([*reader.feed(text), *reader.finish(reason)])

    def __repr__(self) -> str:
        return f"Turn({self.format!r}, {self.prompt!r})"

    def _follows(self, grammar: Grammar) -> bool:
        """Whether `grammar`, which describes a whole answer, also holds after this prompt.

        It does not in two cases. The prompt ends inside a reasoning block that the model is expected to open itself. Or
        it ends inside an answer's content, and either a response format constrains that content or answers begin with
        a header rather than with text.
        """
        if self.left_open:
            return self.format.reasoning != "written"
        return not self.continues or not (self.structured or _has_header(grammar.root))


def _has_header(node: Node) -> bool:
    """Whether everything that `node` derives begins with a control token or a fixed literal."""
    match node:
        case ControlToken() | ExactText():
            return True
        case Loosened(item):
            return _has_header(item)
        case Choice(options):
            return all(map(_has_header, options))
        case Concat(items):
            for item in items:
                if not _has_header(item.item if isinstance(item, Maybe) else item):
                    return False
                if not isinstance(item, Maybe):
                    return True
    return False
