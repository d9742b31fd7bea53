"""Suite `silent`: how many turns of an agent's conversations are silent, empty or loops, and which step is to blame.

A turn is silent if the model reasons and ends without content and without a call, empty if it does not even reason, and
a loop if its text ends in repeats (`loops`). Turns that are cut off by the limit on tokens are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dovetail.client.answer import Answer, mapping
from dovetail.client.endpoint import Exchange, Target, merged
from dovetail.client.not_tested import NotTested
from dovetail.verify.language import Language
from dovetail.verify.outcome import STEPS, Outcome, Step
from dovetail.verify.suites.agent import Conversation
from dovetail.verify.suites.base import Case, Checked, Figure, Finding, Suite, load_cases, share
from dovetail.verify.suites.loops import Loop, loop_at_end

Kind = Literal["silent", "empty", "looping"]
KINDS: tuple[Kind, ...] = ("silent", "empty", "looping")
#: Tokens that open and close reasoning, and may be counted as reasoning.
_MARKERS = 2
#: The most tokens of an answer that shows nothing, beside its reasoning: markers and ends.
_UNSHOWN = 8
_SHOWN = 60  # characters


class Silent(Suite):
    """`conversations` of up to `turns` turns; a conversation ends before where the endpoint takes no more of it."""

    name = "silent"
    needs = ("tools",)

    def __init__(self, conversations: int = 4, turns: int = 25) -> None:
        self._conversations, self._turns = conversations, turns

    def cases(self) -> Sequence[Case]:
        plans = load_cases("silent.json")
        return [
            msgspec.structs.replace(
                plan := plans[number % len(plans)],
                name=f"{plan.name}/{number // len(plans)}",
                expect={**plan.expect, "number": number // len(plans), "turns": self._turns},
            )
            for number in range(self._conversations)
        ]

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        conversation = Conversation(case.expect, case.expect["number"])
        findings: list[Finding] = []
        counts: Counter[str] = Counter()
        prompts = _Prompts()
        for turn in range(1, case.expect["turns"] + 1):
            request = {**case.request, "messages": [*conversation.messages]}
            exchange = await target.chat(request)
            answer = exchange.answer
            if answer.error is not None:
                if turn == 1:
                    raise NotTested(f"it refused a request: {answer.error}", blocking=False)
                break  # the context is full
            cut = prompts.cut(exchange, instructed=conversation.instructed)
            kind = kind_of(answer)
            counts["turns"] += 1
            counts["cut off" if answer.cut_off else "ended"] += 1
            counts["with calls"] += bool(answer.message.calls)
            if kind is not None:
                step, why = await _blame(kind, cut, target, request, exchange, language)
                counts.update((kind, f"by {step}"))
                findings.append(Finding(f"turn {turn} {_shown(kind, answer)}\n{why}", step, exchange, decided=True))
            conversation.go_on(None if kind or answer.cut_off else answer.message)
        if not counts["ended"] and not counts["looping"]:
            limit = target.endpoint.limits.max_tokens
            raise NotTested(f"every answer ran to its limit of {limit} tokens (--max-tokens)", blocking=False)
        return Checked(tuple(findings), counts)

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        total: Counter[str] = Counter()
        for outcome in outcomes:
            total.update(outcome.measures)
        turns, ended, bad = total["turns"], total["ended"], sum(total[kind] for kind in KINDS)
        figures = {
            "silent turns": share(total["silent"], ended),
            "empty turns": share(total["empty"], ended),
            "looping turns": share(total["looping"], turns),
        }
        blamed = {step: total[f"by {step}"] for step in STEPS if total[f"by {step}"]}
        figures |= {f"  of them by {step}": share(count, bad) for step, count in blamed.items()}
        return figures | {
            "turns with calls": share(total["with calls"], turns),
            "turns cut off": share(total["cut off"], turns),
        }


def kind_of(answer: Answer) -> Kind | None:
    """What is wrong with an answer; None if it shows something, or was cut off before it could."""
    message = answer.message
    if _loop(answer) is not None:
        return "looping"
    if answer.cut_off or message.calls or message.content.strip():
        return None
    return "silent" if message.reasoning.strip() or _reasoned(answer) > _MARKERS else "empty"


def _loop(answer: Answer) -> Loop | None:
    message = answer.message
    texts = (message.content, message.reasoning, *(call.arguments for call in message.calls))
    return next(filter(None, map(loop_at_end, texts)), None)


def _reasoned(answer: Answer) -> int:
    """The tokens of reasoning, by the endpoint's count; 0 without one."""
    count = mapping(mapping(answer.usage).get("completion_tokens_details")).get("reasoning_tokens")
    return count if isinstance(count, int) else 0


def _shown(kind: Kind, answer: Answer) -> str:
    ended = f"(finish_reason {answer.finish!r})"
    if loop := _loop(answer):
        return f"ends in {loop.length} characters of repeats of {loop.period[:_SHOWN]!r} {ended}"
    reasoning = len(answer.message.reasoning) or "hidden"
    thought = f"after {reasoning} characters of reasoning " if kind == "silent" else ""
    return f"ends {thought}with neither content nor a call {ended}"


class _Prompts:
    """The endpoint's counts of a conversation's prompts, which only grow."""

    def __init__(self) -> None:
        self._last = self._instructed = 0

    def cut(self, exchange: Exchange, *, instructed: bool) -> str:
        """How a prompt is shorter than the conversation; "" if it is not, or if that is not known.

        A new instruction may remove the reasoning before it from the prompt, so it is compared with the instruction
        before.
        """
        counted = mapping(exchange.answer.usage).get("prompt_tokens")
        if not isinstance(counted, int):
            return ""
        before = self._instructed if instructed else self._last
        self._last = counted
        if instructed:
            self._instructed = counted
        return f"its prompt has {counted} tokens, and an earlier one {before}: it was cut" if counted < before else ""


async def _blame(
    kind: Kind, cut: str, target: Target, request: Mapping[str, Any], exchange: Exchange, language: Language
) -> tuple[Step, str]:
    """The step to blame for a turn, and why: what the exchange shows, then what answers to the same request show."""
    if cut:
        return "prompt", cut
    compared = await language.compared(target.endpoint, exchange)
    if compared.step is not None:
        return compared.step, compared.why
    if not compared.read and kind != "looping" and (lost := _lost(exchange.answer)):
        return "reader", f"its usage counts {lost} tokens beside the reasoning, and it shows none of them"
    features = target.features
    variants: list[tuple[Step, str, Mapping[str, Any]]] = []
    if "dovetail" in merged(features.ids or {}, features.undrafted or {}):
        variants.append(("schema", "the constraint", {"dovetail": {"strict": "off"}}))
    if features.undrafted is not None:
        variants.append(("draft", "drafts", features.undrafted))
    if variants and await _same(kind, target, request):
        for step, without, fields in variants:
            if not await _same(kind, target, merged(request, fields)):
                return step, f"without {without} the same turn is not {kind}, and with {without} it is so again"
    text = None if kind == "looping" else await language.text(target.endpoint, exchange.answer.ids)
    ends = "" if text is None else f"its tokens end in {text[-_SHOWN:]!r}"
    return "model", ends if compared.read else compared.why


async def _same(kind: Kind, target: Target, request: Mapping[str, Any]) -> bool:
    """Whether an answer to `request` is wrong in the same way. Not an exchange of the case, whose turns it has."""
    answer = (await target.endpoint.chat(request)).answer
    return answer.error is None and kind_of(answer) == kind


def _lost(answer: Answer) -> int:
    """How many tokens an answer without content and calls has beside its reasoning; 0 if they are few or not known.

    Reasoning that the endpoint shows and does not count may be all of them.
    """
    tokens, reasoned = mapping(answer.usage).get("completion_tokens"), _reasoned(answer)
    if not isinstance(tokens, int) or (answer.message.reasoning and not reasoned):
        return 0
    return tokens - reasoned if tokens - reasoned > _UNSHOWN else 0
