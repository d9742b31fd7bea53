"""The request for one turn, independent of any API: each API under `apis/` translates its requests into this type."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any

import msgspec

from dovetail.completion import Sampling
from dovetail.conversation import check_response_format
from dovetail.custom_tools import choice_as_function
from dovetail.formats.answers.tool_choice import Strict
from dovetail.formats.prompts.history import KINDS
from dovetail.gateway.records.answers import SignedReasoning
from dovetail.gateway.turn.field_names import FieldNames
from dovetail.gateway.turn.trace import Trace

#: Template options that are request fields too, with the name of that field.
FIELD_OF_OPTION = {
    "reasoning_effort": "reasoning_effort",
    "thinking_effort": "reasoning_effort",
    "tool_choice": "tool_choice",
    "response_format": "response_format",
    "verbosity": "verbosity",
    "preserve_thinking": "thinking.keep",
}

#: The two names under which templates have the option that turns reasoning off.
THINKING_OPTIONS = ("thinking", "enable_thinking")


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request's `dovetail` field, the same in every API. None means the server's own setting.

    `gate`: false lets the engine draft `draft_tokens` in each step, whatever its gate would choose.
    `record`: whether the answer comes with its record. `recording`: whether the request is recorded in a file.
    """

    strict: Strict | None = None
    draft_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    gate: bool | None = None
    repair: bool | dict[str, Any] | None = None
    return_token_ids: bool | None = None
    record: bool | None = None
    recording: bool | None = None
    reasoning_budget: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def repairs_off(self, default_off: Iterable[str]) -> set[str]:
        """The kinds of repair that this request does without. `default_off`: those that the server leaves off."""
        if isinstance(self.repair, bool):
            return set() if self.repair else set(KINDS)
        switches = self.repair or {}
        return {kind for kind in KINDS if not switches.get(kind, kind not in default_off)}


class RawPrompt(msgspec.Struct, frozen=True):
    """A prompt that the client wrote itself, as text or as token ids.

    `field` is its place in the request, for errors. For a text, `prefix` tells whether it begins with the control
    tokens that the tokenizer writes before a text, and `controls` whether the literals of control tokens in it are
    control tokens.
    """

    content: str | tuple[int, ...]
    prefix: bool = True
    controls: bool = False
    field: str = "prompt"


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to run: a conversation, the tools, and how to answer.

    `messages`, `tools`, `tool_choice` and `response_format` have the shapes of OpenAI's chat completions and are well
    formed. Errors, repairs and headers name these fields, by the names that `field_names` has for them;
    `max_tokens_field` is the name under which the client sent `max_tokens`.

    With `prompts`, the turn continues each of them instead of a conversation, and the answers are read as plain text.
    The turn then has `choices` answers to each prompt, in order of the prompts.

    `id` names the answer: a prefix of the API, and 32 hexadecimal digits. `choices` is the number of answers.
    `logprobs` is the number of likeliest tokens to report at each place (None: no log probabilities), and
    `prompt_logprobs` the same for the tokens of raw prompts. `min_tokens`, `ignore_eos` and `stop_token_ids` are those
    of `Completion`.

    `reasoning_effort`, `verbosity` and `keep_reasoning` reach the prompt if its template has options for them.
    `reasoning_budget` is the most tokens of reasoning (None: any number), and `reasoning_budget_field` the field of the
    client that says so ("": none does); `extension` may have a budget too, which counts before it.

    `sampling_fields` has the sampling fields that the client set itself, by name.

    With `fit_max_tokens`, a `max_tokens` above the room in the context is cut to the room; without, it is an error.
    `most_tokens` is the most new tokens that the client's key allows (None: any number).
    With `truncate`, a conversation that leaves too little room for an answer loses its oldest messages. `omitted` lists
    the fields of the client's request that were left out. The response reports all of that in headers.
    With `fit_reasoning_effort`, a `reasoning_effort` that the model does not know becomes the nearest one.
    `signed`: reasoning of the history with its signatures, which are checked. `trace` times the stages of the turn.
    """

    id: str
    messages: Any = ()
    prompts: tuple[RawPrompt, ...] = ()
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: Any = None
    thinking: bool = True
    reasoning_effort: str | None = None
    fit_reasoning_effort: bool = False
    verbosity: str | None = None
    reasoning_budget: int | None = None
    reasoning_budget_field: str = ""
    keep_reasoning: bool = False
    chat_template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    sampling: Sampling = Sampling()
    sampling_fields: Mapping[str, float] = {}
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    fit_max_tokens: bool = False
    most_tokens: int | None = None
    truncate: bool = False
    omitted: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choices: int = 1
    signed: tuple[SignedReasoning, ...] = ()
    extension: Extension = Extension()
    field_names: FieldNames = FieldNames()
    trace: Trace = msgspec.field(default_factory=Trace)

    @property
    def reasoning_limit(self) -> tuple[int | None, str]:
        """The most tokens of reasoning, None for any number, and the name of the field that says so."""
        if self.extension.reasoning_budget is not None:
            return self.extension.reasoning_budget, "dovetail.reasoning_budget"
        return self.reasoning_budget, self.reasoning_budget_field

    @property
    def structured(self) -> bool:
        """Whether a response format constrains the content."""
        return check_response_format(self.response_format) is not None

    def template_options(self, declared: Container[str]) -> dict[str, Any]:
        """The options for the template: `chat_template_kwargs`, and the request's own fields that it declares."""
        effort = None if self.reasoning_effort == "none" else self.reasoning_effort  # `thinking` is False then
        choice = choice_as_function(self.tool_choice)
        if isinstance(choice, dict) and isinstance(allowed := choice.get("allowed_tools"), dict):
            choice = allowed.get("mode")  # templates are older than this shape
        fields = {
            "reasoning_effort": effort,
            "tool_choice": choice,
            "response_format": self._template_format(),
            "verbosity": self.verbosity,
            "thinking.keep": True if self.keep_reasoning else None,
        }
        options = {option: value for option, field in FIELD_OF_OPTION.items() if (value := fields[field]) is not None}
        options = {option: value for option, value in options.items() if option in declared}
        return options | {
            name: value
            for name, value in self.chat_template_kwargs.items()
            if name not in THINKING_OPTIONS or name in declared
        }

    def _template_format(self) -> Any:
        """The response format for the template; None if it asks for text."""
        return self.response_format if self.structured else None
