"""Suite `speculation`: drafting changes the speed and never the text. Its cases are `data/speculation.json`.

Greedy answers with drafting on and off must have the same tokens. Where they differ, the answer with drafts is scored
by the endpoint itself, token by token, so that a near tie of two tokens is told from a defect. Sampled answers must
come from one distribution, which a permutation test decides.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dovetail.client.draft_counters import reading
from dovetail.client.endpoint import Endpoint, Exchange, Target, merged
from dovetail.client.not_tested import NotTested
from dovetail.client.statistics import common, permutation
from dovetail.verify.acceptance import Acceptance, added, between, of_answer
from dovetail.verify.language import Language, message_difference
from dovetail.verify.outcome import Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.suites.base import Case, Checked, Figure, Finding, Suite, load_cases, share

#: Below this difference of log probabilities two tokens are a near tie, which the order of sums may decide.
NEAR_TIE = 0.05
_TOP = 5
_LEAST_P = 0.001
_ROUNDS = 1999
_SHOWN = 5
_ELSEWHERE = "another endpoint without drafter can (--undrafted, or --undrafted-2 for URL2)"

#: Without constraint, so that the likeliest token is what greedy decoding takes.
_OURS: Mapping[str, Any] = {"dovetail": {"strict": "off"}}


class Place(msgspec.Struct, frozen=True):
    """A token of an answer that is not the likeliest one there. `rank`: from 1; None beyond the first few.
    `margin`: how much likelier the likeliest token is, in nats."""

    at: int
    rank: int | None
    margin: float


class _Without(NamedTuple):
    """How answers without drafts are had: at `target`, with the fields `extra`."""

    target: Target
    extra: Mapping[str, Any]

    async def answer(self, request: Mapping[str, Any]) -> Exchange:
        return await self.target.answer(merged(_request(request, self.target), self.extra))


class Speculation(Suite):
    """`undrafted`: for some endpoints, one that serves the same model without a drafter. The others are asked for
    answers without drafts themselves."""

    name = "speculation"

    def __init__(self, undrafted: Mapping[Endpoint, Companion] = MappingProxyType({})) -> None:
        self._undrafted = undrafted

    def cases(self) -> Sequence[Case]:
        return load_cases("speculation.json")

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        if "tools" in case.request and not target.features.tools:
            raise NotTested(target.features.because["tools"], blocking=False)
        if not target.features.counters:
            return await self._compared(case, target)
        before = await reading(target.endpoint)
        checked = await self._compared(case, target)
        after = await reading(target.endpoint)
        if before is None or after is None:
            return checked
        return Checked(checked.findings, {**checked.measures, "counters": (before, after)})

    async def _compared(self, case: Case, target: Target) -> Checked:
        check = _CHECKS[case.check]
        companion = self._undrafted.get(target.endpoint)
        if companion is not None:
            async with companion.asked() as other:
                return await check(case, target, _Without(target.at(other), other.features.undrafted or {}))
        if target.features.undrafted is None:
            raise NotTested(f"it cannot be asked for an answer without drafts; {_ELSEWHERE}", blocking=False)
        return await check(case, target, _Without(target, target.features.undrafted))

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
        answers = [msgspec.convert(outcome.measures.get("acceptance", {}), Acceptance) for outcome in outcomes]
        counters = between(outcome.measures["counters"] for outcome in outcomes if "counters" in outcome.measures)
        all_of = added([*answers, counters])
        counts = zip(all_of.accepted, all_of.drafted, strict=True)
        figures = {f"accepted at position {i}": share(accepted, n) for i, (accepted, n) in enumerate(counts, 1)}
        accepted = sum(outcome.measures.get("accepted", 0) for outcome in outcomes)
        drafted = sum(outcome.measures.get("drafted", 0) for outcome in outcomes)
        if drafted:
            figures["accepted drafts"] = share(accepted, drafted)
        if all_of.steps:
            figures["tokens per step"] = Figure(all_of.tokens / all_of.steps, all_of.steps)
        equal, seeds = (sum(outcome.measures.get(name, 0) for outcome in outcomes) for name in ("equal", "seeds"))
        if seeds:
            figures["sampled answers that are equal with the same seed"] = share(equal, seeds)
        return figures


def _request(request: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
    """The request, without constraint and with counts of drafts where the endpoint has fields for them."""
    ours = {} if target.features.undrafted is None else _OURS
    return merged(merged(request, ours), target.features.acceptance or {})


async def _greedy(case: Case, target: Target, undrafted: _Without) -> Checked:
    with_drafts = await target.answer(_request(case.request, target))
    _need_drafts([with_drafts])
    measures: dict[str, Any] = {"acceptance": msgspec.to_builtins(of_answer(with_drafts))}
    if _drafted(with_drafts):
        measures |= {"drafted": _drafted(with_drafts), "accepted": int(_speculation(with_drafts).get("accepted") or 0)}
    without = await undrafted.answer(case.request)
    if _drafted(without):
        raise NotTested(f"it drafts although the request turns drafting off; {_ELSEWHERE}", blocking=False)
    if _same(with_drafts, without):
        return Checked((), measures)
    again = await undrafted.answer(case.request)
    if not _same(without, again):
        raise NotTested("without drafts the same request has two answers", blocking=False)
    finding = await _difference(undrafted.target, with_drafts, without)
    return Checked(() if finding is None else (finding,), {**measures, "near_ties": finding is None})


def _need_drafts(exchanges: Sequence[Exchange]) -> None:
    """Raise `NotTested` if the endpoint counts drafts and drafted nothing. Others than Dovetail do not count them."""
    if all(map(_speculation, exchanges)) and not any(map(_drafted, exchanges)):
        raise NotTested("no token was drafted: it has no drafter, or its gate is closed", blocking=False)


def _same(first: Exchange, second: Exchange) -> bool:
    a, b = first.answer, second.answer
    if a.ids is not None and b.ids is not None:
        return a.ids == b.ids
    return not message_difference(a.message, b.message, ids=False) and a.finish == b.finish


async def _difference(target: Target, with_drafts: Exchange, without: Exchange) -> Finding | None:
    """The finding; None if every token that is not the likeliest one is a near tie."""
    a, b = with_drafts.answer, without.answer
    if a.ids is None or b.ids is None:
        difference = message_difference(b.message, a.message, ids=False, names=("without drafts", "with"))
        return Finding(f"greedy answers differ: {difference}", "draft", with_drafts, decided=True)
    places = await _places(target, with_drafts)
    if places and all(place.margin <= NEAR_TIE for place in places):
        return None
    shown = "; ".join(
        f"token {place.at}: rank {place.rank or f'beyond {_TOP}'}, {place.margin:.2f} nats" for place in places[:_SHOWN]
    )
    scored = f"; not the likeliest there: {shown}" if shown else ""
    return Finding(
        f"greedy answers differ from token {common(a.ids, b.ids)} on{scored}", "draft", with_drafts, decided=True
    )


async def _places(target: Target, exchange: Exchange) -> list[Place]:
    """The places where the answer has not the likeliest token, by log probabilities of the endpoint without drafts."""
    answer = exchange.answer
    if answer.prompt_ids is None or answer.ids is None:
        return []
    body = {
        "model": target.endpoint.model,
        "prompt": [*answer.prompt_ids, *answer.ids],
        "max_tokens": 0,
        "echo": True,
        "logprobs": _TOP,
        "temperature": 0,
    }
    reply = await target.endpoint.send("POST", "/v1/completions", body)
    if reply.status != 200:
        return []
    return [*_unlikely(json.loads(reply.body)["choices"][0]["logprobs"], len(answer.prompt_ids))]


def _unlikely(logprobs: Mapping[str, Any], prompt: int) -> Iterator[Place]:
    scores = [*zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)]
    for at, (logprob, top) in enumerate(scores[prompt:]):
        likelier = sum(other > logprob for other in top.values())
        if likelier:
            yield Place(at, likelier + 1 if likelier < _TOP else None, max(top.values()) - logprob)


async def _sampled(case: Case, target: Target, undrafted: _Without) -> Checked:
    """`expect`: `draws`, the number of answers with drafts, and of those without.

    Where the same seeds make the same answers, these are of one distribution. Else answers of other seeds are compared.
    """
    draws = case.expect["draws"]

    def seeded(first: int) -> list[dict[str, Any]]:
        return [{**case.request, "temperature": 1, "seed": seed} for seed in range(first, first + draws)]

    exchanges = [await target.answer(_request(request, target)) for request in seeded(1)]
    _need_drafts(exchanges)
    with_drafts = [_text(exchange) for exchange in exchanges]
    without = [_text(await undrafted.answer(request)) for request in seeded(1)]
    equal = sum(map(str.__eq__, with_drafts, without))
    measures = {"equal": equal, "seeds": draws, "p": 1.0}
    if equal == draws:
        return Checked((), measures)
    without = [_text(await undrafted.answer(request)) for request in seeded(1 + draws)]
    p = permutation([(with_drafts, without)], rounds=_ROUNDS)
    if p > _LEAST_P:
        return Checked((), {**measures, "p": p})
    what = f"{draws} answers with drafts and {draws} without are of two distributions (permutation test, p {p:.4f})"
    return Checked((Finding(what, "draft", exchanges[0], decided=True),), {**measures, "p": p})


def _text(exchange: Exchange) -> str:
    if exchange.answer.ids is not None:
        return " ".join(map(str, exchange.answer.ids))
    message = exchange.answer.message
    return " ".join((message.reasoning, message.content, *(f"{call.name} {call.arguments}" for call in message.calls)))


def _drafted(exchange: Exchange) -> int:
    return int(_speculation(exchange).get("drafted") or 0)


def _speculation(exchange: Exchange) -> Mapping[str, Any]:
    return (exchange.answer.usage or {}).get("speculation") or {}


_CHECKS: Mapping[str, Callable[[Case, Target, _Without], Awaitable[Checked]]] = {
    "greedy": _greedy,
    "sampled": _sampled,
}
