"""A turn that is ready to run, its request with a completion and a reader for each answer, and who may watch it run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from dovetail.completion import Completion, Picture, Sampling
from dovetail.conversation import check_tools
from dovetail.formats import turn as formats
from dovetail.formats.prompts.history import Repair
from dovetail.gateway.records.answers import AnswerRecorder, Signatures
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.prefix import Prefix, SentPrompt
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.gateway.turn.validation import AnswerSchemas
from dovetail.grammar import Grammar
from dovetail.grammar.bounded_reasoning import BoundedReasoning
from dovetail.grammar.guard import Guarded
from dovetail.grammar.matcher import Matcher
from dovetail.reading import Reader
from dovetail.tokens import Prompt, Tokenizer

#: A session that may be a header as it is.
_PRINTABLE = re.compile("[!-~]{1,256}")
#: What an engine that takes a constraint enforces of an answer.
AnswerConstraint = Matcher | Guarded | BoundedReasoning


class PreparedChoice(NamedTuple):
    """One answer of a turn: the completion for the engine, and what makes a reader for the engine's output."""

    completion: Completion
    new_reader: Callable[[], Reader]


def completion_of(
    request: TurnRequest,
    choice: int,
    prompt: tuple[int, ...],
    max_tokens: int,
    *,
    grammar: Grammar | None = None,
    constraint: AnswerConstraint | None = None,
    grammar_required: bool = False,
    reasoning_budget: int | None = None,
    recorded: bool = False,
    pictures: tuple[Picture, ...] = (),
    picture_token: int | None = None,
) -> Completion:
    """The completion of a choice, with a request id, a seed and a constraint of its own.

    `recorded`: whether the turn is recorded.
    """
    return Completion(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=_with_seed(request.sampling, choice),
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        constraint=constraint.another() if constraint else None,
        grammar=grammar,
        grammar_required=grammar_required,
        reasoning_budget=reasoning_budget,
        draft_tokens=request.extension.draft_tokens,
        gated=request.extension.gate is not False,
        kind="after a tool result" if request.messages and request.messages[-1].get("role") == "tool" else "",
        report_drafts=recorded,
        cache_salt=request.cache_salt,
        session=session_of(request),
        priority=request.priority,
        adapter=request.adapter,
        request_id=request.id if choice == 0 else f"{request.id}-{choice}",
        trace_context=request.trace.context,
        pictures=pictures,
        picture_token=picture_token,
    )


class PreparedTurn(msgspec.Struct, frozen=True):
    """A request that is ready to run.

    `created` is in seconds since the epoch. `language` is the turn in the model's format; for raw prompts it has no
    tools. `new_repairs`: the `repairs` that no earlier turn of the conversation had. `grammar` and `constraint`,
    which the choices have copies of, describe the answer. `recorded`: the turn is recorded. `unenforced` lists the
    fields of the request, with JSON pointers into their schemas, that no grammar enforces although they were to be
    enforced. `most_drafts` is how many tokens the engine drafts in a step; None if it does not report single steps.
    `spelled_controls` are the control tokens that raw prompts spell as ordinary text. `prefix`: how the prompt goes on
    from the last one of its conversation (None: there is none); `sent` remembers it for the next one.
    """

    created: int
    request: TurnRequest
    language: formats.Turn
    repairs: tuple[Repair, ...]
    new_repairs: tuple[Repair, ...]
    choices: tuple[PreparedChoice, ...]
    tokenizer: Tokenizer
    recorded: bool
    schemas: AnswerSchemas
    unenforced: tuple[str, ...]
    recorder: AnswerRecorder
    most_drafts: int | None
    signatures: Signatures
    grammar: Grammar | None = None
    constraint: AnswerConstraint | None = None
    spelled_controls: tuple[str, ...] = ()
    prefix: Prefix | None = None
    sent: SentPrompt | None = None

    def record(self, choice: int, ids: Sequence[int]) -> str:
        """The record of a finished choice: `ids` are its tokens as the client got them, in all of its steps.

        A client that returns it as ``message["dovetail"] = {"record": …}`` of the assistant's message gets these tokens
        into its next prompt. "" for an answer that is too long for a record.
        """
        return self.recorder.record(choice, ids).record

    @property
    def id(self) -> str:
        """The name of the answer."""
        return self.request.id

    @property
    def prompt(self) -> tuple[int, ...]:
        """The token ids of the prompt, the first one of several."""
        return self.choices[0].completion.prompt

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(len(first.completion.prompt) for first in self.choices[:: self.request.choices])

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of the custom tools. In the steps of a turn, the arguments of their calls are text, not JSON."""
        return frozenset(self.request.client_names.get(name, name) for name in self.custom_tools_written)

    @property
    def custom_tools_written(self) -> frozenset[str]:
        """The names of the custom tools, as the model writes them."""
        return frozenset(tool.name for tool in check_tools(self.language.tools) if tool.custom)

    @property
    def max_tokens(self) -> int:
        """The most new tokens of each choice of the first prompt."""
        return self.choices[0].completion.max_tokens

    @property
    def max_tokens_cut(self) -> bool:
        """Whether the request asked for more tokens than the context has room for."""
        return self.request.max_tokens is not None and self.max_tokens < self.request.max_tokens


class Rendered(msgspec.Struct, frozen=True):
    """The prompt of a request, its token ids, and the repairs that were made to the history."""

    request: TurnRequest
    prompt: Prompt
    ids: tuple[int, ...]
    repairs: tuple[Repair, ...]


def session_of(request: TurnRequest) -> str:
    """The session for the engine: the client's own, or else a digest of how the conversation begins, up to the first
    message of a user. "" for a raw prompt without a session.
    """
    if _PRINTABLE.fullmatch(request.session):
        return request.session
    beginning: object = request.session
    if not beginning:
        users = (i for i, message in enumerate(request.messages, 1) if message.get("role") == "user")
        first = request.messages[: next(users, len(request.messages))]
        if not first:
            return ""
        beginning = first, request.picture_digests, request.cache_salt
    return blake2b(repr(beginning).encode(), digest_size=16).hexdigest()


def _with_seed(sampling: Sampling, offset: int) -> Sampling:
    """`sampling` with `offset` added to its seed, in 64 bits: choices differ, and can be generated again."""
    if sampling.seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + offset + 2**63) % 2**64 - 2**63)


class Observer:
    """Watches one request, in the order of the methods. It overrides those it needs. No method waits for anything."""

    def prepared(self, turn: PreparedTurn) -> None:
        """The request has become `turn`."""

    def admitted(self) -> None:
        """The engine has a place for the turn."""

    def step(self, step: Step) -> None:
        """The engine has made a step. Runs for every token, before the client gets the step."""

    def ended(self, error: BaseException | None) -> None:
        """The request has ended: with `error`, or with its whole response."""
