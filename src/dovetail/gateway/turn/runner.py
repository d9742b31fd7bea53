"""Runs a turn: render -> complete -> parse, as a stream of `Step`s, the same for every API.

`TurnRunner.prepare` makes a `PreparedTurn` of a request; it computes for milliseconds, so it is called outside the
event loop. `TurnRunner.steps` runs the turn: each choice is a sequence of its own in the engine, and steps come as they
are made. A whole response is the fold of the same steps that a stream sends, so the two cannot disagree.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress

import msgspec

from dovetail.completion import Engine, Picture
from dovetail.conversation import Tools
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.events import fold
from dovetail.formats import turn as formats
from dovetail.formats.base import Format
from dovetail.formats.prompts.history import UNMARKED_CALL, Repair
from dovetail.gateway.records.answers import (
    AnswerRecorder,
    AnswerStart,
    Signatures,
    recorded_answers,
    spelling,
)
from dovetail.gateway.records.memory import Memory
from dovetail.gateway.records.record import Sealer, model_digest, picture_numbers
from dovetail.gateway.store.interface import StoreError
from dovetail.gateway.turn.continuation import Continuation
from dovetail.gateway.turn.guards import AnswerGuards, must_speak
from dovetail.gateway.turn.logprobs import Speller
from dovetail.gateway.turn.output import OutputReader, Step, TimedOutputReader
from dovetail.gateway.turn.prefix import Following, SentPrompts
from dovetail.gateway.turn.prompt import (
    WrittenPrompt,
    new_repairs,
    opening_of,
    truncated,
    without_billing_lines,
    written_prompt,
)
from dovetail.gateway.turn.raw_prompt import RawReader, ids_of, least_tokens, prompt_of, spelled_controls
from dovetail.gateway.turn.remedies import remedied
from dovetail.gateway.turn.streams import merge
from dovetail.gateway.turn.tools import declared_tools, errors_about_tools, with_client_names
from dovetail.gateway.turn.trace import Trace
from dovetail.gateway.turn.turn import AnswerConstraint, PreparedChoice, PreparedTurn, Rendered, completion_of
from dovetail.gateway.turn.turn_request import TurnDefaults, TurnRequest, fixed
from dovetail.gateway.turn.validation import AnswerSchemas, AnswerValidator, answer_schemas
from dovetail.grammar import FreeText, Grammar, matcher
from dovetail.grammar.bounded_reasoning import BoundedReasoning, left_open_since
from dovetail.grammar.grammar import Writer
from dovetail.grammar.guard import Guarded
from dovetail.grammar.inputs.check import check_together
from dovetail.grammar.matcher import Matcher
from dovetail.reading import Reader
from dovetail.tokens import Detokenizer, Prompt, Tokenizer

#: A truncated conversation leaves 1 / this of the context for the answer.
_LEAST_ROOM = 4

#: The most prompt tokens of a request that get log probabilities, unless the context is longer: each takes about 1 KB.
_MOST_SCORED = 65_536


#: Several models may begin at a time, and what libraries build at the first use may not be built by two threads.
_WARMING = threading.Lock()

#: The words by which LiteLLM and LangChain know that a prompt is too long.
_MAXIMUM = "This model's maximum context length is {} tokens"


class TurnRunner:
    """Runs turns for one model: its format, its tokenizer, and the engine that completes its prompts."""

    def __init__(
        self, engine: Engine, fmt: Format, tokenizer: Tokenizer, defaults: TurnDefaults, memory: Memory | None = None
    ) -> None:
        self._engine = engine
        self._format = fmt
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._speller = Speller(tokenizer)
        self._signatures = Signatures(defaults.record_key)
        self._memory = memory
        self._sent = SentPrompts()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return self._engine.info.context

    @property
    def salts_cache(self) -> bool:
        """Whether the engine keeps cached prompts with different salts apart."""
        return self._engine.info.salts_cache

    @property
    def sees(self) -> bool:
        """Whether prompts may have pictures: the format has a place for them, and the engine takes them."""
        return self._place is not None and self._engine.info.pictures

    @functools.cached_property
    def _place(self) -> int | None:
        """The token that stands for a picture."""
        return self._tokenizer.control.get(self._format.picture) if self._format.picture is not None else None

    def warm_up(self) -> None:
        """Build the grammar library's view of the vocabulary: about a second for 160,000 tokens."""
        with _WARMING:
            matcher.compile(Grammar(FreeText()), self._tokenizer, sorted(self._end_ids))
            _ = self._tokenizer.longest_token, self._sealer

    def prepare(self, request: TurnRequest, trace: Trace | None = None, *, recorded: bool = False) -> PreparedTurn:
        """Everything before the engine. Takes milliseconds; raises `InvalidRequest` or `RenderError`.

        `trace` times it, and the turn's other stages. `recorded`: whether the turn is recorded.
        """
        request = msgspec.structs.replace(request, trace=trace or request.trace)
        with _deep_nesting_refused(), request.field_names.in_errors():
            if request.extension.gate is False and not self._defaults.gate_override:
                raise InvalidRequest("this server does not let requests switch its gate off", param="dovetail.gate")
            if self._defaults.fixed_sampling is not None:
                request = fixed(request, self._defaults.fixed_sampling)
            if request.priority and not self._engine.info.priorities:
                request = msgspec.structs.replace(request, priority=0, omitted=(*request.omitted, "priority"))
            request = self._recalled(request)
            request = truncated(request, self._has_room) if request.truncate else request
            return self._prepare(request, recorded)

    def render(self, request: TurnRequest) -> Rendered:
        """The prompt of `request` without an answer, so it may be longer than the context.

        Raises `InvalidRequest` or `RenderError`. Takes about a second for a megabyte of text that is new.
        """
        with _deep_nesting_refused(), request.field_names.in_errors():
            if request.prompts:
                (raw,) = request.prompts
                return Rendered(request, prompt_of(raw, self._tokenizer), ids_of(raw, self._tokenizer), ())
            declared_tools(request, self._format)  # refuses the tools that `prepare` refuses
            request, _, _ = self._remedied(self._recalled(request))
            written = self._written(request)
            ids = tuple(written.prompt.ids(self._tokenizer))
            return Rendered(request, written.prompt, ids, self._reports(request, written))

    def _recalled(self, request: TurnRequest) -> TurnRequest:
        """`request` as the template takes it, with the records of the answers that memory knows, and the place of the
        next answer."""
        request = request.for_template(self._format.template_options)
        request = without_billing_lines(request, self._repairs_off(request))
        if self._memory is None or request.tenant is None or not self._remembers(request):
            return request
        with request.trace.stage("repair"):
            recalled = self._memory.recall(
                request.messages,
                request.tools,
                request.tenant,
                self._sealer.model,
                request.picture_digests,
                continues=request.continue_final_message,
            )
        place = recalled.place if request.stores else None
        return msgspec.structs.replace(request, messages=recalled.messages, place=place)

    def _remedied(self, request: TurnRequest) -> tuple[TurnRequest, Following | None, frozenset[str]]:
        """`request` as it goes on from the last prompt of its conversation, how it does (None: nothing is remembered),
        and the labels of the dates that stand behind its system text."""
        if not self._remembers(request):
            return request, None, frozenset()
        following = self._sent.following(request)
        if following.last is None or not following.begins_otherwise:
            return request, following, frozenset()
        remedied_, repairs, dates = remedied(request, following.last, self._repairs_off(request))
        if repairs:
            request = msgspec.structs.replace(remedied_, remedies=(*request.remedies, *repairs))
            following = self._sent.following(request)
        return request, following, dates

    def _remembers(self, request: TurnRequest) -> bool:
        """Whether something of `request` and its answer may be remembered."""
        off = self._memory is None or request.tenant is None or request.extension.memory is False
        return not (off or request.prompts)

    def remember(self, turn: PreparedTurn, steps: Sequence[Step]) -> None:
        """Keep the answers of `turn`, whose `steps` are there, if it asks for that.

        Takes as long as their records, and may wait for the disk.
        """
        if turn.sent is not None and len(turn.choices) == 1:
            answer = fold(event for step in steps for event in step.events)
            self._sent.answered(turn.sent, [token for step in steps for token in step.ids], answer)
        tenant, place = turn.request.tenant, turn.request.place
        if self._memory is None or tenant is None or place is None:
            return
        for choice in range(len(turn.choices)):
            ids = [token for step in steps if step.choice == choice for token in step.ids]
            if (made := turn.recorder.record(choice, ids)).record:
                with suppress(StoreError):  # the file has logged it
                    model = self._sealer.model
                    self._memory.keep(made.record, made.shown, made.calls, tenant, model, place, turn.id)

    def _has_room(self, request: TurnRequest) -> bool:
        """Whether `request` leaves a quarter of the context for the answer, or what the answer may have at most."""
        prompt = self._written(request).prompt
        try:
            self._check_length(prompt)
        except ContextExceeded:
            return False
        wanted = self.context // _LEAST_ROOM
        wanted = wanted if request.max_tokens is None else min(wanted, request.max_tokens)
        return len(prompt.ids(self._tokenizer)) + wanted <= self.context

    def _written(self, request: TurnRequest) -> WrittenPrompt:
        """The prompt of `request`, with the tokens of its recorded answers, and all repairs."""
        digests = request.picture_digests
        records, reports = recorded_answers(request.messages, request.tools, self._sealer, digests)
        # An answer in which the model wrote a place for a picture is rendered from its text: no picture is there.
        answers = {
            i: spelling(record, self._tokenizer) for i, record in records.items() if self._place not in record.ids
        }
        written = written_prompt(request, self._format, answers, self._repairs_off(request))
        return written._replace(repairs=[*written.repairs, *reports, *request.remedies])

    def _repairs_off(self, request: TurnRequest) -> set[str]:
        return request.extension.repairs_off(self._defaults.no_repair)

    def _reports(self, request: TurnRequest, written: WrittenPrompt) -> tuple[Repair, ...]:
        """What the response reports of the history, with the client's names for its fields."""
        repairs = map(request.field_names.of_repair, written.repairs)
        return (*repairs, *self._signatures.check(request.signed))

    def _new_reports(self, request: TurnRequest, written: WrittenPrompt) -> tuple[Repair, ...]:
        """What of that is new: earlier turns reported what is before the last message of the assistant."""
        return self._reports(request, written._replace(repairs=new_repairs(written.repairs, request.messages)))

    def _start(self, request: TurnRequest, written: WrittenPrompt, left_open: bool) -> AnswerStart | None:
        """How the answers to `request` begin; None if their first tokens are not known.

        `left_open`: the prompt ends inside reasoning.
        """
        if not request.continue_final_message:
            opening = Prompt.alternating(opening_of(request, self._format, written))
            return AnswerStart(opening.ids(self._tokenizer), (), left_open)
        continued = written.answers.get(len(request.messages) - 1)
        if continued is None:
            return None
        opening, answer = Prompt.alternating([*continued.opening]), Prompt.alternating([*continued.pieces])
        in_reasoning = self._format.left_open(opening)
        return AnswerStart(opening.ids(self._tokenizer), answer.ids(self._tokenizer), in_reasoning)

    def _prepare(self, request: TurnRequest, recorded: bool) -> PreparedTurn:
        if request.prompts:
            return self._prepare_raw(request, recorded)
        request, following, dates = self._remedied(request)
        tools = declared_tools(request, self._format)
        written = self._written(request)
        prompt = written.prompt
        self._check_length(prompt)
        with request.trace.stage("render"):
            ids = tuple(prompt.ids(self._tokenizer))
        pictures = [request.pictures[part["number"]] for part in prompt.pictures]
        max_tokens = self._max_tokens(request, len(ids))
        self._check_tokens(request, max_tokens)
        language = formats.Turn(
            self._format,
            prompt,
            tools=tools,
            tool_choice=request.tool_choice,
            thinking=request.thinking,
            continues=request.continue_final_message,
            response_format=request.response_format,
            parallel_tool_calls=request.parallel_tool_calls,
            on_malformed_call=request.extension.on_malformed_call or self._defaults.on_malformed_call,
            bare_calls=UNMARKED_CALL not in self._repairs_off(request),
        )
        with request.trace.stage("compile"), errors_about_tools():
            if any(tool.custom for tool in tools):  # no other tool has a grammar of its own
                check_together(tools)
            grammar = self._grammar(request, language)
            matcher_ = self._matcher(grammar, request, language)
            schemas = answer_schemas(request, tools)
        constraint, budget, unbounded = self._bounded(matcher_, request, ids, max_tokens, language)
        if unbounded:
            request = msgspec.structs.replace(request, omitted=(*request.omitted, unbounded))
        new_reader = functools.partial(self._reader, request, language)
        choices = (
            PreparedChoice(
                completion_of(
                    request,
                    choice,
                    ids,
                    max_tokens,
                    grammar=grammar,
                    constraint=constraint,
                    grammar_required=not language.is_free,
                    reasoning_budget=budget,
                    recorded=recorded,
                    pictures=tuple(picture for picture in pictures if isinstance(picture, Picture)),
                    picture_token=self._place,
                ),
                functools.partial(new_reader, choice, language.left_open),
            )
            for choice in range(request.choices)
        )
        start = functools.partial(self._start, request, written, language.left_open)
        prefix, sent = None, None
        if following is not None:
            prefix, sent = self._sent.compared(request, following, ids, written.answers, dates)
        return PreparedTurn(
            created=int(time.time()),
            request=request,
            language=language,
            repairs=self._reports(request, written),
            new_repairs=self._new_reports(request, written),
            choices=tuple(choices),
            tokenizer=self._tokenizer,
            recorded=recorded,
            schemas=schemas,
            unenforced=tuple(map(request.field_names.of, self._unenforced(grammar, schemas))),
            most_drafts=self._most_drafts,
            recorder=self._recorder(request, start, new_reader),
            signatures=self._signatures,
            grammar=grammar,
            constraint=constraint,
            prefix=prefix,
            sent=sent,
        )

    def _bounded(
        self,
        matcher: Matcher | Guarded | None,
        request: TurnRequest,
        prompt: tuple[int, ...],
        max_tokens: int,
        language: formats.Turn,
    ) -> tuple[AnswerConstraint | None, int | None, str]:
        """The constraint of `matcher` and of the budget for reasoning, the engine's own budget (`Completion`), and the
        field of a budget that nothing enforces.

        Nothing can end the reasoning of a format without a control token for that.
        """
        default, declared = self._defaults.reasoning_budget, self._format.template_options
        budget, field = request.reasoning_budget_of(max_tokens, default, declared)
        if budget is None or not (language.left_open or language.may_reason):
            return matcher, None, ""
        info, left_open = self._engine.info, language.left_open
        markers = self._format.reasoning_tokens(self._tokenizer)
        if markers is not None and info.enforces == "constraint":
            return BoundedReasoning(matcher, self._tokenizer, markers, budget, left_open=left_open), None, ""
        # llguidance refuses an end of reasoning inside a character, and vLLM then fails the request.
        bounds = info.bounds_reasoning and (matcher is None or info.enforces == "structural_tag")
        if markers is not None and bounds and self._format.closable_markers is not None:
            # vLLM finds a block by its markers alone, and counts its tokens in the prompt too.
            spent = left_open_since(prompt, markers)
            if left_open == (spent is not None):
                return matcher, budget + (spent or 0), ""
        return matcher, None, field

    def _matcher(
        self, grammar: Grammar | None, request: TurnRequest, language: formats.Turn
    ) -> Matcher | Guarded | None:
        """What enforces `grammar` in an engine that takes a constraint. It is compiled for every engine, because that
        finds what is wrong with a schema."""
        if grammar is None:
            return None
        ends = sorted(self._end_ids)
        speaking = matcher.compile(grammar, self._tokenizer, ends)
        if self._engine.info.enforces != "constraint":
            return speaking
        silent = self._grammar(request, language, silent=True)
        if silent is None or silent == grammar:
            return speaking
        return Guarded(speaking, matcher.compile(silent, self._tokenizer, ends))

    def _grammar(self, request: TurnRequest, language: formats.Turn, *, silent: bool = False) -> Grammar | None:
        """The grammar of the answer; None if anything may come. `silent`: also of an answer that says nothing.

        Plain text has one too, which only keeps a call from beginning. It is left out with `strict` "off", and where it
        would end an answer that `ignore_eos` or `min_tokens` keep open, or where the prompt does not open an answer.
        """
        # A request that asks for no level goes on without one where the engine enforces nothing.
        usual = "off" if self._engine.info.enforces == "nothing" else self._defaults.strict
        strict = request.extension.strict or usual
        opens_answer = request.add_generation_prompt or request.continue_final_message
        if language.is_free and (strict == "off" or request.ignore_eos or request.min_tokens or not opens_answer):
            return None
        return language.grammar(strict, silent=silent or request.extension.allows_silence(self._defaults.allow_silent))

    def _reader(self, request: TurnRequest, language: formats.Turn, choice: int, in_reasoning: bool) -> Reader:
        """A reader of an answer for `choice`. `in_reasoning`: reasoning is open where the answer begins."""
        prefix = f"call_{request.id[-32:][:16]}_{f'{choice}_' if choice else ''}"
        return dataclasses.replace(language, left_open=in_reasoning).reader(self._tokenizer, call_prefix=prefix)

    @property
    def _most_drafts(self) -> int | None:
        info = self._engine.info
        return info.draft_tokens if info.reports_steps else None

    def _recorder(
        self, request: TurnRequest, start: Callable[[], AnswerStart | None], new_reader: Callable[[int, bool], Reader]
    ) -> AnswerRecorder:
        digests = request.picture_digests
        return AnswerRecorder(
            self._sealer,
            self._tokenizer,
            start,
            new_reader,
            request.tools,
            request.stop,
            self._end_ids.union(request.stop_token_ids),
            [digests[number] for each in request.messages for number in picture_numbers(each)] if digests else (),
        )

    def _prepare_raw(self, request: TurnRequest, recorded: bool) -> PreparedTurn:
        """The turn of raw prompts: no tools, no grammar, no repairs."""
        if request.prompt_logprobs is not None and not self._engine.info.prompt_logprobs:
            raise InvalidRequest(
                "this engine does not report log probabilities of prompts: leave out echo or logprobs", param="echo"
            )
        numbers = range(len(request.prompts))
        choices = tuple(choice for number in numbers for choice in self._raw_choices(request, number, recorded))
        most = max(self.context, _MOST_SCORED)
        scored = 0 if request.prompt_logprobs is None else sum(len(each.completion.prompt) for each in choices)
        if scored > most:
            message = (
                f"echo with logprobs is limited to {most} tokens in all prompts and answers, and here are {scored}"
            )
            raise InvalidRequest(f"{message}: send fewer prompts at once", param="prompt")
        return PreparedTurn(
            created=int(time.time()),
            request=request,
            language=formats.Turn(self._format, left_open=False),
            repairs=(),
            new_repairs=(),
            choices=choices,
            tokenizer=self._tokenizer,
            recorded=recorded,
            schemas=answer_schemas(request, Tools()),
            unenforced=(),
            most_drafts=self._most_drafts,
            recorder=self._recorder(request, lambda: None, lambda choice, in_reasoning: RawReader()),
            signatures=self._signatures,
            spelled_controls=spelled_controls(request.prompts, self._tokenizer),
        )

    def _raw_choices(self, request: TurnRequest, number: int, recorded: bool) -> list[PreparedChoice]:
        """The answers to one of the raw prompts."""
        raw = request.prompts[number]
        self._check_least(least_tokens(raw, self._tokenizer), raw.field)
        ids = ids_of(raw, self._tokenizer)
        if not ids:
            raise InvalidRequest(f"{raw.field} is empty: it needs at least one token", param=raw.field)
        if self.sees and self._place in ids:
            message = f"{raw.field} has the token of a picture, and no picture: send pictures in messages"
            raise InvalidRequest(message, param=raw.field)
        max_tokens = self._max_tokens(request, len(ids), raw.field)
        self._check_tokens(request, max_tokens)
        named = msgspec.structs.replace(request, id=f"{request.id}.{number}") if number else request
        return [
            PreparedChoice(completion_of(named, choice, ids, max_tokens, recorded=recorded), RawReader)
            for choice in range(request.choices)
        ]

    def _unenforced(self, grammar: Grammar | None, schemas: AnswerSchemas) -> tuple[str, ...]:
        enforces = self._engine.info.enforces
        writer: Writer = enforces if enforces in ("structural_tag", "gbnf") else "lark"
        places = [origin + pointer for origin, pointer in grammar.unenforced(writer)] if grammar else []
        return tuple(dict.fromkeys((*places, *schemas.unchecked)))

    def _check_length(self, prompt: Prompt) -> None:
        """Refuse a prompt that cannot fit before it is tokenized, which takes a second for a megabyte."""
        self._check_least(len(prompt.text.encode(errors="replace")) // self._tokenizer.longest_token, "messages")

    def _check_least(self, least: int, field: str) -> None:
        if least >= self.context:
            raise self._too_long(f"at least {least}", least, field)

    def _too_long(self, number: str, tokens: int, field: str) -> ContextExceeded:
        message = f"{_MAXIMUM.format(self.context)}, and the prompt is too long: it is {number} tokens"
        return ContextExceeded(message, param=field, prompt=tokens, context=self.context)

    def _max_tokens(self, request: TurnRequest, prompt: int, prompt_field: str = "messages") -> int:
        """How many new tokens the answer may have after a prompt of `prompt` tokens."""
        context = self._engine.info.context
        room = context - prompt
        if room < 1:
            raise self._too_long(f"{prompt}", prompt, prompt_field)
        most = min(room, request.most_tokens or room)
        if request.max_tokens is None:
            return min(most, self._defaults.default_max_tokens or most)
        field = request.max_tokens_field if self._defaults.strict_max_tokens else ""
        if field and request.max_tokens > room:
            raise ContextExceeded(
                f"{_MAXIMUM.format(context)}, but {field} is {request.max_tokens} and the prompt is {prompt} tokens: "
                f"set {field} to at most {room}, or leave it out",
                param=field,
                prompt=prompt,
                context=context,
                max_tokens=request.max_tokens,
            )
        if field and request.max_tokens > most:
            raise InvalidRequest(f"{field} is {request.max_tokens}, and this key may ask for {most}", param=field)
        return min(request.max_tokens, most)

    def _check_tokens(self, request: TurnRequest, max_tokens: int) -> None:
        """Refuse token ids that the model does not have, and more `min_tokens` than `max_tokens`."""
        vocabulary = self._engine.info.vocab_size
        for field, tokens in (("logit_bias", request.sampling.logit_bias), ("stop_token_ids", request.stop_token_ids)):
            if (unknown := next((token for token in tokens if token >= vocabulary), None)) is not None:
                message = f"{field} has the token id {unknown}, but the vocabulary has {vocabulary}"
                raise InvalidRequest(message, param=field)
        if request.min_tokens > max_tokens:
            message = f"min_tokens is {request.min_tokens}, but the answer has at most {max_tokens} tokens"
            raise InvalidRequest(message, param="min_tokens")

    def steps(self, turn: PreparedTurn) -> AsyncGenerator[Step]:
        """The answer: the engine's steps, up to the last step of every choice.

        Closing the generator closes the engine's streams, which frees their cache blocks; so does a choice that fails.
        At most one step of each other choice is read ahead. The engine itself may run ahead, up to `max_tokens`.
        """
        choices = [self._choice_steps(turn, number) for number in range(len(turn.choices))]
        return choices[0] if len(choices) == 1 else merge(choices)

    async def _choice_steps(self, turn: PreparedTurn, number: int) -> AsyncGenerator[Step]:
        """The steps of one choice, up to the one with a finish reason. Closing the generator ends the completion."""
        completion, output = turn.choices[number].completion, self._output(turn, number)
        guards = self._guards(turn, number, output)
        # The first token of a prompt has no log probability.
        scored = 0 if completion.prompt_logprobs is None else len(completion.prompt) - 1
        async with aclosing(guards.batches()) as batches:
            async for batch in batches:
                if len(batch.prompt_logprobs) != scored:
                    raise EngineError("the engine did not return the log probabilities of the prompt once")
                scored = 0
                step = guards.noted(with_client_names(await output.step(batch), turn.request.client_names))
                if step.finish is not None:
                    if output.ended_early:
                        turn.recorder.leave_out(number)
                    break
                yield step
        # The completion is closed before its last step is yielded, so that a slow client does not keep cache blocks.
        yield step

    def _output(self, turn: PreparedTurn, number: int) -> OutputReader:
        """What turns the token batches of one choice into steps."""
        (completion, new_reader), trace = turn.choices[number], turn.request.trace
        new_output = functools.partial(TimedOutputReader, trace) if trace.detailed else OutputReader
        return new_output(
            number,
            new_reader(),
            Detokenizer(self._tokenizer),
            AnswerValidator(turn.schemas),
            stop=completion.stop,
            end_ids=self._end_ids.union(completion.stop_token_ids),
            speller=None if completion.logprobs is None else self._speller,
            custom_tools=turn.custom_tools_written,
        )

    def _guards(self, turn: PreparedTurn, number: int, output: OutputReader) -> AnswerGuards:
        request, defaults = turn.request, self._defaults
        plain = dataclasses.replace(turn.language, left_open=False, thinking=False, continues=False)
        grammar = functools.partial(self._grammar, request, plain)
        return AnswerGuards(
            self._engine,
            turn,
            number,
            output,
            functools.partial(Continuation, turn, number, self._engine.info, self._end_ids, grammar),
            speaks=must_speak(request, defaults.allow_silent),
            loops=request.extension.loops or defaults.loops,
            ends=self._end_ids,
        )

    @functools.cached_property
    def _sealer(self) -> Sealer:
        model = model_digest(self._format.name, self._tokenizer)
        return Sealer(self._defaults.record_key, model, self._tokenizer.vocab_size)

    @functools.cached_property
    def _end_ids(self) -> frozenset[int]:
        control = self._tokenizer.control
        named = (control[literal] for literal in self._format.end_of_turn if literal in control)
        return frozenset((*self._engine.info.eos_ids, *named))


@contextmanager
def _deep_nesting_refused() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise InvalidRequest("messages or tools are nested too deeply") from error
