"""The request for one turn, independent of any API: each API under `apis/` translates its requests into this type."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any

import msgspec

from dovetail.completion import Sampling
from dovetail.conversation import check_response_format
from dovetail.formats.history import KINDS
from dovetail.formats.tool_choice import Strict

#: Template options that are request fields too, with the name of that field.
FIELD_OF_OPTION = {
    "reasoning_effort": "reasoning_effort",
    "thinking_effort": "reasoning_effort",
    "tool_choice": "tool_choice",
    "response_format": "response_format",
}

#: The two names under which templates have the option that turns reasoning off.
THINKING_OPTIONS = ("thinking", "enable_thinking")


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request's `dovetail` field, the same in every API. None means the server's own setting."""

    strict: Strict | None = None
    draft_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    repair: bool | dict[str, Any] | None = None
    return_token_ids: bool | None = None

    def repairs_off(self, default_off: Iterable[str]) -> set[str]:
        """The kinds of repair that this request does without. `default_off`: those that the server leaves off."""
        if isinstance(self.repair, bool):
            return set() if self.repair else set(KINDS)
        switches = self.repair or {}
        return {kind for kind in KINDS if not switches.get(kind, kind not in default_off)}


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to run: a conversation, the tools, and how to answer.

    `messages`, `tools`, `tool_choice` and `response_format` have the shapes of OpenAI's chat completions and are well
    formed. Errors name these fields; `max_tokens_field` is the name under which the client sent `max_tokens`.

    `id` names the answer: a prefix of the API, "-" and hexadecimal digits. `choices` is the number of answers.
    `logprobs` is the number of likeliest tokens to report at each place (None: no log probabilities).
    """

    id: str
    messages: Any
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: Any = None
    thinking: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    choices: int = 1
    extension: Extension = Extension()

    @property
    def structured(self) -> bool:
        """Whether a response format constrains the content."""
        return check_response_format(self.response_format) is not None

    def template_options(self, declared: Container[str]) -> dict[str, Any]:
        """The options for the template: `chat_template_kwargs`, and the request's own fields that it declares."""
        effort = None if self.reasoning_effort == "none" else self.reasoning_effort  # `thinking` is False then
        choice = self.tool_choice
        if isinstance(choice, dict) and isinstance(allowed := choice.get("allowed_tools"), dict):
            choice = allowed.get("mode")  # templates are older than this shape
        fields = {"reasoning_effort": effort, "tool_choice": choice, "response_format": self._template_format()}
        options = {option: value for option, field in FIELD_OF_OPTION.items() if (value := fields[field]) is not None}
        options = {option: value for option, value in options.items() if option in declared}
        return options | {
            name: value
            for name, value in self.chat_template_kwargs.items()
            if name not in THINKING_OPTIONS or name in declared
        }

    def _template_format(self) -> Any:
        """The response format as templates know it: a `json_schema` without a schema is any JSON object."""
        if not self.structured:
            return None
        shape = self.response_format
        schemaless = shape["type"] == "json_schema" and shape["json_schema"].get("schema") is None
        return {"type": "json_object"} if schemaless else shape
