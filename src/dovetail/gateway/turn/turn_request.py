"""The request for one turn, independent of any API: each API under `apis/` translates its requests into this type.

Beside it: the client's names for its fields, and what an operator may set or fix for all requests.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec

from dovetail.checkpoints.fixed_sampling import FixedSampling
from dovetail.completion import Picture, Sampling
from dovetail.conversation import ResponseFormat, Tools
from dovetail.custom_tools import choice_as_function
from dovetail.errors import DovetailError, InvalidRequest
from dovetail.formats.answers.tool_choice import Strict, requires_call
from dovetail.formats.efforts import budget_of
from dovetail.formats.prompts.history import KINDS, Repair
from dovetail.gateway.records.answers import SignedReasoning
from dovetail.gateway.records.memory import Tenant
from dovetail.gateway.turn.picture_files import RemotePicture
from dovetail.gateway.turn.trace import Trace
from dovetail.reading import OnMalformedCall

#: What becomes of an answer that repeats itself. "break" ends its reasoning, so that it goes on behind that.
Loops = Literal["report", "stop", "break", "off"]

#: Where a path may be cut: before an index, a dot, or the "#" of a JSON pointer.
_STEP = re.compile(r"[.\[#]")


class FieldNames(msgspec.Struct, frozen=True):
    """The client's names for fields of a `TurnRequest`.

    `prefixes` maps the beginning of a path (`messages[2].tool_calls[0].function`) to what the client calls it
    (`input[3]`). The longest one counts; a path without one keeps its name.
    """

    prefixes: Mapping[str, str] = {}

    def of(self, path: str) -> str:
        """The client's name for `path`."""
        if not self.prefixes:
            return path
        for end in (len(path), *(step.start() for step in reversed(list(_STEP.finditer(path))))):
            if (name := self.prefixes.get(path[:end])) is not None:
                return name + path[end:]
        return path

    def of_repair(self, repair: Repair) -> Repair:
        """`repair` with the client's name for its place."""
        return msgspec.structs.replace(repair, where=self.of(repair.where)) if self.prefixes else repair

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Errors inside this context name the client's fields."""
        try:
            yield
        except DovetailError as error:
            if error.param is not None and (name := self.of(error.param)) != error.param:
                error.message = error.message.replace(error.param, name)
                error.param = name
            raise


#: Names that templates have for one option, whether a prompt shows the reasoning of earlier turns, with the value that
#: shows it.
_KEEPING = {
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "drop_thinking": False,
    "truncate_history_thinking": False,
}
_EFFORTS = ("reasoning_effort", "thinking_effort")

#: Template options that are request fields too, with the name of that field.
FIELD_OF_OPTION = {
    **dict.fromkeys(_EFFORTS, "reasoning_effort"),
    "tool_choice": "tool_choice",
    "response_format": "response_format",
    "verbosity": "verbosity",
    **dict.fromkeys(_KEEPING, "thinking.keep"),
}

#: Reasoning before a required call leaves 1 / this of the answer's tokens for the call, but no more than this number.
_FOR_A_CALL, _MOST_FOR_A_CALL = 4, 4_096

#: The two names under which templates have the option that turns reasoning off.
THINKING_OPTIONS = ("thinking", "enable_thinking")


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request's `dovetail` field, the same in every API. None means the server's own setting.

    `gate`: false lets the engine draft `draft_tokens` in each step, whatever its gate would choose.
    `record`: whether the answer comes with its record. `recording`: whether the request is recorded in a file.
    `memory`: false keeps nothing of the answer, and puts no earlier answer back.
    `on_malformed_call`: see `Format.reader`. `silent`: whether the answer may end without content and calls.
    `loops`: what becomes of an answer that repeats itself.
    """

    strict: Strict | None = None
    draft_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    gate: bool | None = None
    repair: bool | dict[str, Any] | None = None
    return_token_ids: bool | None = None
    record: bool | None = None
    recording: bool | None = None
    memory: bool | None = None
    reasoning_budget: Annotated[int, msgspec.Meta(ge=0)] | None = None
    on_malformed_call: OnMalformedCall | None = None
    silent: bool | None = None
    loops: Loops | None = None

    def allows_silence(self, default: bool) -> bool:
        """Whether the answer may say nothing. `default`: whether it may on this server."""
        return default if self.silent is None else self.silent

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
    formed. `declared` has the tools as `Tools`, and `client_names` the client's name of each tool that has another one
    for the model (`tools.typed` sets both). Errors, repairs and headers name these fields, by the names that
    `field_names` has for them; `max_tokens_field` is the name under which the client sent `max_tokens` ("": it sent
    none).

    With `prompts`, the turn continues each of them instead of a conversation, and the answers are read as plain text.
    The turn then has `choices` answers to each prompt, in order of the prompts.

    `id` names the answer: a prefix of the API, and 32 hexadecimal digits. `choices` is the number of answers.
    `logprobs` is the number of likeliest tokens to report at each place (None: no log probabilities), and
    `prompt_logprobs` the same for the tokens of raw prompts. `min_tokens`, `ignore_eos` and `stop_token_ids` as
    in `Completion`.

    `reasoning_effort`, `verbosity` and `keep_reasoning` reach the prompt if its template has options for them.
    `reasoning_budget` is the most tokens of reasoning (None: any number), and `reasoning_budget_field` the field of the
    client that says so ("": none does); `extension` may have a budget too, which counts before it.

    `sampling_fields` has the sampling fields that the client set itself, by name.

    A `max_tokens` above the room in the context, or above `most_tokens`, which is the most that the client's key allows
    (None: any number), is cut, unless the server's setting says otherwise.
    With `truncate`, a conversation that leaves too little room for an answer loses its oldest messages, but not that
    number of the last ones. `omitted` lists the fields of the client's request that were left out. The response reports
    all of that in headers.
    With `fit_reasoning_effort`, a `reasoning_effort` that the model does not know becomes the nearest one.
    `cache_salt`, `priority`, `adapter`: see `Completion`. `session`: the client's name for the conversation ("": none).
    `signed`: reasoning of the history with its signatures, which are checked. `trace` times the stages of the turn.
    `pictures`: a part of a message with the type "image" has the `number` of one.
    `remedies`: what was changed so that the prompt begins with the last one.
    `tenant`: whose answers are put back into the history, and kept if `stores` (None: nobody's). `place`: the place of
    the answer in memory (None: it is not kept).
    """

    id: str
    messages: Any = ()
    prompts: tuple[RawPrompt, ...] = ()
    tools: Any = None
    declared: Tools = Tools()
    client_names: Mapping[str, str] = {}
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
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
    most_tokens: int | None = None
    truncate: int = 0
    omitted: tuple[str, ...] = ()
    cache_salt: str | None = None
    session: str = ""
    priority: int = 0
    adapter: str = ""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choices: int = 1
    signed: tuple[SignedReasoning, ...] = ()
    tenant: Tenant | None = None
    stores: bool = True
    place: bytes | None = None
    remedies: tuple[Repair, ...] = ()
    pictures: tuple[Picture | RemotePicture, ...] = ()
    extension: Extension = Extension()
    field_names: FieldNames = FieldNames()
    trace: Trace = msgspec.field(default_factory=Trace)

    @property
    def picture_bytes(self) -> int:
        """The size of the files of `pictures`."""
        return sum(len(picture.data) for picture in self.pictures if isinstance(picture, Picture))

    @property
    def picture_digests(self) -> list[str]:
        """The digests of the files of `pictures`; "" for one that is not fetched."""
        return [picture.sha256 if isinstance(picture, Picture) else "" for picture in self.pictures]

    @property
    def has_remote_pictures(self) -> bool:
        """Whether pictures have to be fetched before the turn can be prepared."""
        return any(isinstance(picture, RemotePicture) for picture in self.pictures)

    @property
    def reasoning_limit(self) -> tuple[int | None, str]:
        """The most tokens of reasoning, None for any number, and the name of the field that says so."""
        if self.extension.reasoning_budget is not None:
            return self.extension.reasoning_budget, "dovetail.reasoning_budget"
        return self.reasoning_budget, self.reasoning_budget_field

    def reasoning_budget_of(
        self, max_tokens: int, default: int | None, declared: Container[str]
    ) -> tuple[int | None, str]:
        """The most tokens of reasoning in an answer of at most `max_tokens`, and the field that says so, if one does.

        `default`: the budget of a request without one. `declared`: the options of the template; an effort that it has
        no option for is a budget. Reasoning before a required call also has to leave room for that call.
        """
        budget, field = self.reasoning_limit
        if budget is None and not field:
            budget = default
            knows_efforts = any(option in declared for option in _EFFORTS)
            if self.reasoning_effort and not knows_efforts and (most := budget_of(self.reasoning_effort)) is not None:
                budget = most if default is None else min(most, default)
                field = self.field_names.of("reasoning_effort")
        if not requires_call(self.tool_choice):
            return budget, field
        left = max_tokens - min(max_tokens // _FOR_A_CALL, _MOST_FOR_A_CALL)
        return left if budget is None else min(budget, left), field

    def for_template(self, declared: Container[str]) -> TurnRequest:
        """The request with the `chat_template_kwargs` that the template declares; the others are in `omitted`.

        One that the template has under another name gets that name.
        """
        own: dict[str, Any] = {}
        renamed: dict[str, Any] = {}
        unknown: list[str] = []
        for name, value in self.chat_template_kwargs.items():
            if name in declared or name in THINKING_OPTIONS:
                own[name] = value
            elif others := [option for option in _other_names(name, value) if option[0] in declared]:
                renamed.update(others)
            else:
                unknown.append(f"chat_template_kwargs.{name}")
        if len(own) == len(self.chat_template_kwargs):
            return self
        omitted = (*self.omitted, *unknown)
        return msgspec.structs.replace(self, chat_template_kwargs=renamed | own, omitted=omitted)

    def template_options(self, declared: Container[str]) -> dict[str, Any]:
        """The options for the template: `chat_template_kwargs`, and the request's own fields that it declares."""
        effort = None if self.reasoning_effort == "none" else self.reasoning_effort  # `thinking` is False then
        choice = choice_as_function(self.tool_choice)
        if isinstance(choice, dict) and isinstance(allowed := choice.get("allowed_tools"), dict):
            choice = allowed.get("mode")  # templates are older than this shape
        fields = {
            "reasoning_effort": effort,
            "tool_choice": choice,
            "response_format": self.response_format,
            "verbosity": self.verbosity,
            "thinking.keep": True if self.keep_reasoning else None,
        }
        options = {option: value for option, field in FIELD_OF_OPTION.items() if (value := fields[field]) is not None}
        options |= {name: keeps for name, keeps in _KEEPING.items() if name in options}
        options = {option: value for option, value in options.items() if option in declared}
        return options | {
            name: value
            for name, value in self.chat_template_kwargs.items()
            if name not in THINKING_OPTIONS or name in declared
        }


def _other_names(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Other names of a template option, with the values that mean `value` there."""
    if name in _KEEPING and isinstance(value, bool):
        yield from ((other, keeps == (value == _KEEPING[name])) for other, keeps in _KEEPING.items())
    elif name in _EFFORTS:
        yield from ((other, value) for other in _EFFORTS)


_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
)


def sampling_fields(request: Any) -> dict[str, float]:
    """The sampling fields that the client set in its request, whatever the API."""
    values = {field: getattr(request, field, None) for field in _FIELDS}
    return {field: value for field, value in values.items() if value is not None}


def fixed(request: TurnRequest, allowed: FixedSampling) -> TurnRequest:
    """`request` with the server's values. Raises `InvalidRequest` that names the field for a value that is not allowed.

    A request that sets an allowed value gets it.
    """
    requested = request.sampling_fields
    for field, values in allowed.items():
        if (value := requested.get(field, values[0])) not in values:
            shown = " or ".join(f"{each:g}" for each in values)
            raise InvalidRequest(
                f"{field} must be {shown}, because this server fixes the sampling to the model's own, not {value:g}",
                param=field,
            )
    chosen = {field: requested.get(field, values[0]) for field, values in allowed.items() if field != "n"}
    top_k = int(chosen.get("top_k", 0))
    sampling = msgspec.structs.replace(request.sampling, **{**chosen, "top_k": top_k if top_k > 0 else None})
    return msgspec.structs.replace(request, sampling=sampling)


class TurnDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of turns. A request may override `strict`, `no_repair`, `on_malformed_call`, `allow_silent`,
    `loops` and `default_max_tokens`.

    `strict` is the level of tools when neither the request nor the tool has one. `no_repair` names the kinds of repair
    to leave off. `on_malformed_call` says what becomes of a call that cannot be read (`Format.reader`).
    `allow_silent`: whether answers may end without content and calls. `loops`: what becomes of answers that repeat
    themselves.
    `default_max_tokens` limits the answers to requests without a limit (None: the rest of the context).
    `reasoning_budget` is the most tokens of reasoning in answers to requests without a budget (None: any number). With
    `strict_max_tokens`, a request for more new tokens than are possible is refused, and not cut to what is possible.

    `fixed_sampling` has the values that requests may have in each sampling field (None: any). With `gate_override`, a
    request may switch the gate off for itself. `record_key` signs the records of answers, which clients return in their
    next request. Servers that share their clients share the key.
    """

    strict: Strict = "schema"
    no_repair: frozenset[str] = frozenset()
    on_malformed_call: OnMalformedCall = "error"
    allow_silent: bool = False
    loops: Loops = "report"
    default_max_tokens: int | None = None
    strict_max_tokens: bool = False
    reasoning_budget: int | None = None
    fixed_sampling: FixedSampling | None = None
    gate_override: bool = True
    record_key: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(32))
