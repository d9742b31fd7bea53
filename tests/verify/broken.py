"""Endpoints that are broken on purpose, each in one step, by switching that step of Dovetail's own gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dovetail.client.transport import Reply
from dovetail.completion import Completion
from dovetail.events import CallArguments, CallStart, Content, Event, Message, Reasoning
from dovetail.formats.families.kimi_k2 import KimiK2, KimiK25, KimiReader
from dovetail.tokens import Prompt, Segment, raw_prompt
from dovetail.verify.outcome import Step
from tests.verify.harness import AppTransport, gateway
from tests.verify.model import Model, tokenizer, wished


class Broken(NamedTuple):
    """`cases`: the suite and beginnings of the names of the cases that show the fault.

    `free`: nothing constrains its answers, so a forced call may be missing, and may not end.
    """

    name: str
    step: Step
    make: Callable[[], AppTransport]
    cases: tuple[str, ...]
    free: bool = False


# -- readers ----------------------------------------


def read_by(change: Callable[[list[Event]], list[Event]], sizes: Sequence[int] = (1, 4, 2, 7)) -> AppTransport:
    """An endpoint whose reader's events are changed, list by list."""

    class Reader(KimiReader):
        def feed_segments(self, segments: Any) -> list[Event]:
            return change(super().feed_segments(segments))

        def finish(self, reason: str = "stop") -> list[Event]:
            return change(super().finish(reason))

    class Fmt(KimiK25):
        reader_type = Reader

    return AppTransport(gateway(Model(sizes), Fmt()))


def ids_of_another_scheme() -> AppTransport:
    def change(events: list[Event]) -> list[Event]:
        return [CallStart(e.index, f"call_{e.index}", e.name) if isinstance(e, CallStart) else e for e in events]

    return read_by(change)


def one_id_for_all() -> AppTransport:
    def change(events: list[Event]) -> list[Event]:
        return [CallStart(e.index, f"functions.{e.name}:0", e.name) if isinstance(e, CallStart) else e for e in events]

    return read_by(change)


def reasoning_dropped() -> AppTransport:
    return read_by(lambda events: [event for event in events if not isinstance(event, Reasoning)])


def reasoning_as_content() -> AppTransport:
    return read_by(lambda events: [Content(e.text) if isinstance(e, Reasoning) else e for e in events])


def marker_in_content() -> AppTransport:
    def change(events: list[Event]) -> list[Event]:
        return [*(Content("<|tool_calls_section_begin|>") for e in events if isinstance(e, CallStart)), *events]

    return read_by(change)


def arguments_lose_their_end() -> AppTransport:
    def change(events: list[Event]) -> list[Event]:
        return [CallArguments(e.index, e.fragment.rstrip("}")) if isinstance(e, CallArguments) else e for e in events]

    return read_by(change)


def content_loses_its_spaces() -> AppTransport:
    return read_by(lambda events: [Content(e.text.replace(" ", "")) if isinstance(e, Content) else e for e in events])


# -- responses ----------------------------------------


def replied(change: Callable[[Any], None], *, streamed: bool | None = None, model: Model | None = None) -> AppTransport:
    """An endpoint whose chat responses (chunks too, or only one of both) are changed in place."""

    def altered(path: str, body: bytes | None, reply: Reply) -> Reply:
        if path != "/v1/chat/completions" or reply.status != 200:
            return reply
        if reply.body.startswith(b"data:"):
            return reply if streamed is False else Reply(200, reply.headers, _events(reply.body, change))
        if streamed:
            return reply
        decoded = json.loads(reply.body)
        change(decoded)
        return Reply(200, reply.headers, json.dumps(decoded).encode())

    return AppTransport(gateway(model), altered)


def _events(body: bytes, change: Callable[[Any], None]) -> bytes:
    blocks = []
    for block in body.decode().split("\n\n"):
        if block.startswith("data: {"):
            chunk = json.loads(block[6:])
            change(chunk)
            block = f"data: {json.dumps(chunk)}"
        blocks.append(block)
    return "\n\n".join(blocks).encode()


def calls_lost_in_big_deltas() -> AppTransport:
    """As the parsers that look at the last delta only: a call of which much comes at once is not seen."""

    def change(response: Any) -> None:
        for choice in response["choices"]:
            part = choice.get("delta") or choice.get("message") or {}
            at_once = [len(call["function"].get("arguments") or "") for call in part.get("tool_calls") or ()]
            drafted = "delta" in choice or response["usage"]["speculation"]["drafted"]
            if drafted and any(length > 10 for length in at_once):
                del part["tool_calls"]
            if choice["finish_reason"] == "tool_calls":
                choice["finish_reason"] = "stop" if drafted else "tool_calls"

    return replied(change, model=Model((64,)))


def usage_does_not_add_up() -> AppTransport:
    def change(response: Any) -> None:
        if response.get("usage"):
            response["usage"]["total_tokens"] += 1

    return replied(change)


def finish_reason_stop() -> AppTransport:
    def change(response: Any) -> None:
        for choice in response["choices"]:
            if choice["finish_reason"] == "tool_calls":
                choice["finish_reason"] = "stop"

    return replied(change)


def indices_from_one() -> AppTransport:
    def change(chunk: Any) -> None:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                piece["index"] += 1

    return replied(change, streamed=True)


def stream_loses_a_piece() -> AppTransport:
    def change(chunk: Any) -> None:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                piece["function"]["arguments"] = piece["function"].get("arguments", "").replace("Paris", "")
            if (choice["delta"].get("content") or "").strip():
                choice["delta"]["content"] = ""

    return replied(change, streamed=True)


def stream_without_an_end() -> AppTransport:
    def altered(path: str, body: bytes | None, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b"data: [DONE]\n\n", b""))

    return AppTransport(gateway(), altered)


def refusals(status: int, body: bytes) -> AppTransport:
    """An endpoint that answers what it should refuse, or refuses it in its own way."""

    def altered(path: str, sent: bytes | None, reply: Reply) -> Reply:
        return Reply(status, reply.headers, body) if reply.status in (400, 404) else reply

    return AppTransport(gateway(), altered)


def wrong_requests_are_answered() -> AppTransport:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    message = {"role": "assistant", "content": "Hello."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return refusals(200, json.dumps({"choices": [choice], "usage": usage}).encode())


def errors_of_another_shape() -> AppTransport:
    return refusals(400, b'{"detail": "no"}')


# -- prompts ----------------------------------------


def rendered(change: Callable[[Prompt], Prompt], **settings: Any) -> AppTransport:
    """An endpoint whose prompts are changed."""

    class Fmt(KimiK25):
        def _render(self, *arguments: Any, **options: Any) -> Prompt:
            return change(super()._render(*arguments, **options))

    return AppTransport(gateway(fmt=Fmt(), **settings))


def segments(change: Callable[[Segment], Segment | None], **settings: Any) -> AppTransport:
    def changed(prompt: Prompt) -> Prompt:
        return Prompt(new for segment in prompt.segments if (new := change(segment)) is not None)

    return rendered(changed, **settings)


def no_generation_prompt() -> AppTransport:
    class Fmt(KimiK25):
        def _render(self, messages: Any, tools: Any, thinking: bool, open_turn: bool, **options: Any) -> Prompt:
            return super()._render(messages, tools, thinking, False, **options)

    return AppTransport(gateway(fmt=Fmt()))


def another_template() -> AppTransport:
    class Fmt(KimiK25):
        _render = KimiK2._render

    return AppTransport(gateway(fmt=Fmt()))


def foreign_ids_stay() -> AppTransport:
    return AppTransport(gateway(no_repair=frozenset({"call_id", "result_id"})))


def empty_content_as_a_word() -> AppTransport:
    """What a template writes that makes text of null."""

    class Fmt(KimiK25):
        def _render(self, messages: Any, *arguments: Any, **options: Any) -> Prompt:
            spelled = [{**m, "content": "None"} if m.get("content") in (None, "") else m for m in messages]
            return super()._render(spelled, *arguments, **options)

    return AppTransport(gateway(fmt=Fmt()))


def one_tool_is_shown() -> AppTransport:
    class Fmt(KimiK25):
        def _render(self, messages: Any, tools: Any, *arguments: Any, **options: Any) -> Prompt:
            return super()._render(messages, tools[:1], *arguments, **options)

    return AppTransport(gateway(fmt=Fmt()))


def _undescribed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _undescribed(each) for key, each in value.items() if key != "description"}
    return value


def descriptions_dropped() -> AppTransport:
    class Fmt(KimiK25):
        def _render(self, messages: Any, tools: Any, *arguments: Any, **options: Any) -> Prompt:
            return super()._render(messages, [_undescribed(tool) for tool in tools], *arguments, **options)

    return AppTransport(gateway(fmt=Fmt()))


def results_dropped() -> AppTransport:
    class Fmt(KimiK25):
        def _render(self, messages: Any, *arguments: Any, **options: Any) -> Prompt:
            empty = [{**message, "content": ""} if message["role"] == "tool" else message for message in messages]
            return super()._render(empty, *arguments, **options)

    return AppTransport(gateway(fmt=Fmt()))


def reasoning_always_on() -> AppTransport:
    class Fmt(KimiK25):
        def _render(self, messages: Any, tools: Any, thinking: bool, *arguments: Any, **options: Any) -> Prompt:
            return super()._render(messages, tools, True, *arguments, **options)

    return AppTransport(gateway(fmt=Fmt()))


def text_becomes_control() -> AppTransport:
    """As tokenizers do that find control tokens in any text."""
    return rendered(lambda prompt: raw_prompt(prompt.text, tokenizer(), prefix=False, controls=True))


def long_prompts_cut() -> AppTransport:
    """Keeps the last 1,200 characters of a long text."""
    return segments(lambda each: Segment(each.text[-1200:], each.control))


# -- drafts ----------------------------------------


class WrongVerification(Model):
    """Takes the third draft token of a step as the drafter proposed it."""

    def verified(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        wrong = self.tokenizer.encode(" the")[0]
        at = next((i for i, token in enumerate(ids) if "Paris" in self.tokenizer.decode([token])), None)
        return ids if at is None else (*ids[:at], wrong, *ids[at + 1 :])


class RepeatsDrafts(Model):
    """Puts an accepted token out twice."""

    def verified(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return (*ids[:3], *ids[2:])


class GoesOnAfterTheEnd(Model):
    """Accepts drafts after the token that ends the reasoning, and so loses it."""

    def verified(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        close = self.tokenizer.control["</think>"]
        return tuple(token for token in ids if token != close)


class DraftsEndTheTurn(Model):
    """Verifies the draft of the end of the turn, although the model goes on with a call."""

    def verified(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        section = self.tokenizer.control["<|tool_calls_section_begin|>"]
        return (*ids[: ids.index(section)], self.end) if section in ids else ids


# -- schemas ----------------------------------------


class NoConstraint(Model):
    """An engine that does not enforce what it is asked to."""

    def constraint(self, completion: Completion) -> Any:
        return None


def always_off() -> AppTransport:
    """A gateway that takes no part of a request as a constraint."""

    class Fmt(KimiK25):
        def grammar(self, *arguments: Any, **options: Any) -> None:
            return None

    return AppTransport(gateway(fmt=Fmt()))


# -- models ----------------------------------------


class NeverCalls(Model):
    def wish(self, prompt: str, completion: Completion) -> Message:
        return Message("I cannot do that.", wished(prompt).reasoning)


class CallsAnything(Model):
    """Weights that write calls which are no JSON; nothing constrains them, because the level is `off`."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        wish = wished(prompt)
        calls = tuple(type(call)(call.id, call.name, '{"city": ;}') for call in wish.calls)
        return Message(wish.content, wish.reasoning, calls)


class LongForgetful(Model):
    """Loses what is in the middle of a prompt of more than 1,500 tokens."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        if len(completion.prompt) > 1500:
            prompt = prompt.replace("The city is", "")
        return wished(prompt)

    @classmethod
    def make(cls) -> AppTransport:
        return AppTransport(gateway(cls()))


def modelled(model: type[Model], **settings: Any) -> Callable[[], AppTransport]:
    return lambda: AppTransport(gateway(model(), **settings))


GREEDY = ("greedy/call-paris", "greedy/text-1")
CALLS = ("call/auto", "stream-equals-whole/call")
BROKEN = (
    Broken("calls lost in big deltas", "reader", calls_lost_in_big_deltas, CALLS),
    Broken("ids of another scheme", "reader", ids_of_another_scheme, CALLS),
    Broken("one id for all calls", "reader", one_id_for_all, ("call/two",)),
    Broken("reasoning dropped", "reader", reasoning_dropped, CALLS),
    Broken("reasoning as content", "reader", reasoning_as_content, ("finish/stop",)),
    Broken("a marker in the content", "reader", marker_in_content, CALLS),
    Broken("arguments lose their end", "reader", arguments_lose_their_end, CALLS),
    Broken("content loses its spaces", "reader", content_loses_its_spaces, ("finish/stop",)),
    Broken("usage does not add up", "reader", usage_does_not_add_up, ("finish/stop",)),
    Broken("finish_reason is always stop", "reader", finish_reason_stop, CALLS),
    Broken("indices from one", "reader", indices_from_one, ("stream-equals-whole/call",)),
    Broken("the stream loses a piece", "reader", stream_loses_a_piece, ("stream-equals-whole/call",)),
    Broken("the stream has no end", "reader", stream_without_an_end, ("stream-equals-whole/text",)),
    Broken("wrong requests are answered", "prompt", wrong_requests_are_answered, ("errors/",)),
    Broken("errors of another shape", "prompt", errors_of_another_shape, ("errors/",)),
    Broken("no generation prompt", "prompt", no_generation_prompt, CALLS),
    Broken("another family's template", "prompt", another_template, CALLS),
    Broken("foreign ids stay", "prompt", foreign_ids_stay, ("history/foreign",)),
    Broken("empty content is a word", "prompt", empty_content_as_a_word, ("history/null", "multi-turn/result")),
    Broken("one tool of several is shown", "prompt", one_tool_is_shown, CALLS),
    Broken("descriptions of tools dropped", "prompt", descriptions_dropped, ("call/auto",)),
    Broken("results dropped", "prompt", results_dropped, ("multi-turn/",)),
    Broken("reasoning cannot be turned off", "prompt", reasoning_always_on, ("reasoning/",)),
    Broken("wrong verification", "draft", modelled(WrongVerification), GREEDY),
    Broken("a draft token twice", "draft", modelled(RepeatsDrafts, strict="off"), GREEDY, free=True),
    Broken(
        "drafts over the end of reasoning",
        "draft",
        modelled(GoesOnAfterTheEnd, strict="off"),
        (*GREEDY, "call/auto"),
        free=True,
    ),
    Broken("drafts end the turn", "draft", modelled(DraftsEndTheTurn), ("call/auto",)),
    Broken(
        "the constraint is ignored", "schema", modelled(NoConstraint), ("tool-choice/required", "parallel/"), free=True
    ),
    Broken("schemas are ignored", "schema", modelled(NoConstraint), ("kind/set", "forbidden/give"), free=True),
    Broken("the level is always off", "schema", always_off, ("forbidden/give", "tool-choice/required"), free=True),
    Broken("users' text becomes control tokens", "prompt", text_becomes_control, ("user", "result", "tool-d")),
    Broken("long prompts are cut", "prompt", long_prompts_cut, ("1000/at-the-end", "2000/at-the-end")),
    Broken("long prompts lose their middle", "model", LongForgetful.make, ("1000/depth-0.5", "2000/depth-0.5")),
    Broken("never calls", "model", modelled(NeverCalls), ("call/auto",)),
    Broken("arguments are no JSON", "model", modelled(CallsAnything, strict="off"), ("call/auto",), free=True),
)
