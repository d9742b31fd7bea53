"""The samples of a cell as figures with intervals, and two cells beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec

from dovetail.bench.plan import Kind, Speculation
from dovetail.bench.timing import Drafting, Sample, TextKind
from dovetail.client.statistics import Interval, Pair, bootstrap, percentiles

_SHARES = (0.5, 0.9, 0.99)
#: No first step makes more tokens than this: a server whose first delta has more has held text back.
MOST_OF_A_STEP = 16
#: A wave: the samples of requests that were sent at once.
Wave = Sequence[Sample]


class Times(msgspec.Struct, frozen=True):
    """Percentiles with their 95 % intervals, for which whole waves are drawn. `n`: how many values."""

    p50: float
    p90: float
    p99: float
    p50_interval: Interval
    p90_interval: Interval
    p99_interval: Interval
    n: int


class Calls(msgspec.Struct, frozen=True):
    """`checked`: finished answers that had to call. `wrong`: those that are wrong, with the first reason."""

    checked: int = 0
    wrong: int = 0
    because: str | None = None


class Acceptance(msgspec.Struct, frozen=True):
    """`length`: tokens a step. `by_position`: the share of steps that accepted a draft token there, if reported.

    `of_all_clients`: it is from counters of the server, which other clients may have moved, too.
    """

    length: float
    rate: float | None
    forced: int
    by_position: tuple[float, ...]
    of_all_clients: bool = False


class KindTokens(msgspec.Struct, frozen=True):
    """Deltas of one kind of text, and their mean tokens. At Dovetail a delta is a step, so this is its acceptance."""

    deltas: int
    tokens_per_delta: float


class WarmUp(msgspec.Struct, frozen=True):
    """Medians of the requests before the timed ones, which are in no other figure."""

    requests: int
    ttft_ms: float
    tpot_ms: float | None


class Cell(msgspec.Struct, frozen=True):
    """One endpoint at one context and concurrency. Without figures, `because` says why.

    `decode_tokens_per_second`: of one request, after its first delta. `decode_tokens_per_second_all`: of all requests,
    while all of them decode. `prefill_tokens_per_second`: prompt tokens that were not cached, over TTFT.
    `ttft_ms`: to the first delta with tokens. `answer_ms`: to the first delta of content or a call.
    `tpot_ms`: per token after the first delta. `gap_ms`: between deltas, which may hold several tokens.
    `waves`: the median decode speed of each wave. `first_delta_estimated`: its tokens are known by its characters only.
    `late_first_deltas`: answers whose first delta has more than `MOST_OF_A_STEP` tokens. Their `ttft_ms` has decoding
    in it, and they are not in `prefill_tokens_per_second`.
    """

    endpoint: str
    context: int
    concurrency: int
    kind: Kind
    speculation: Speculation
    because: str | None = None
    requests: int = 0
    prompt_tokens: tuple[int, int] | None = None
    cached_share: float | None = None
    decode_tokens_per_second: Times | None = None
    decode_tokens_per_second_all: float | None = None
    prefill_tokens_per_second: Times | None = None
    ttft_ms: Times | None = None
    answer_ms: Times | None = None
    tpot_ms: Times | None = None
    gap_ms: Times | None = None
    end_to_end_ms: Times | None = None
    acceptance_length: float | None = None
    acceptance: Acceptance | None = None
    calls: Calls = Calls()
    waves: tuple[float | None, ...] = ()
    warm_up: WarmUp | None = None
    first_delta_estimated: bool = False
    late_first_deltas: int = 0
    tokens_by_kind: dict[TextKind, KindTokens] = {}

    @property
    def late_answers(self) -> str | None:
        """What to say about `late_first_deltas`; None if there is none."""
        if not self.late_first_deltas:
            return None
        return (
            f"{self.late_first_deltas} of {self.requests} answers begin with more than {MOST_OF_A_STEP} tokens at "
            "once: the endpoint holds text back, so TTFT has decoding in it"
        )


class Ratio(msgspec.Struct, frozen=True):
    """How many times as fast one variant decodes as another in the same waves: geometric mean, 95 % interval."""

    context: int
    concurrency: int
    kind: Kind
    numerator: str
    denominator: str
    decode: float
    interval: Interval


def measured(
    empty: Cell,
    warm_up: Wave,
    waves: Sequence[Wave],
    calls: Calls,
    counted: Sequence[Sequence[int]] = (),
) -> Cell:
    """`empty` with the figures of its timed waves.

    `counted`: by how much the server's counters grew in each wave: steps with drafts, then accepted ones by position.
    """
    every = [sample for wave in waves for sample in wave]
    prompts = [sample.prompt_tokens for sample in every]
    acceptance = _accepted([sample.drafting for sample in every if sample.drafting is not None]) or _counted(counted)
    return msgspec.structs.replace(
        empty,
        requests=len(every),
        prompt_tokens=(min(prompts), max(prompts)),
        cached_share=sum(sample.cached_tokens for sample in every) / sum(prompts),
        decode_tokens_per_second=_times(waves, _rates),
        decode_tokens_per_second_all=_decode_of_all(waves),
        prefill_tokens_per_second=_times(waves, _prefill),
        ttft_ms=_times(waves, lambda sample: [1000 * sample.first]),
        answer_ms=_times(waves, lambda sample: [] if sample.answer is None else [1000 * sample.answer]),
        tpot_ms=_times(waves, _per_token),
        gap_ms=_times(waves, lambda sample: [1000 * gap for gap in sample.gaps]),
        end_to_end_ms=_times(waves, lambda sample: [1000 * sample.end]),
        acceptance_length=None if acceptance is None else acceptance.length,
        acceptance=acceptance,
        calls=calls,
        waves=tuple(_median([rate for sample in wave for rate in _rates(sample)]) for wave in waves),
        warm_up=_warm_up(warm_up),
        first_delta_estimated=any(sample.estimated for sample in every),
        late_first_deltas=sum(map(_is_late, every)),
        tokens_by_kind=_by_kind(every),
    )


def _rates(sample: Sample) -> list[float]:
    return [] if sample.time_per_token is None else [1 / sample.time_per_token]


def _per_token(sample: Sample) -> list[float]:
    return [] if sample.time_per_token is None else [1000 * sample.time_per_token]


def _prefill(sample: Sample) -> list[float]:
    if sample.first <= 0 or _is_late(sample):
        return []
    return [(sample.prompt_tokens - sample.cached_tokens) / sample.first]


def _is_late(sample: Sample) -> bool:
    return sample.first_tokens > MOST_OF_A_STEP


def _times(waves: Sequence[Wave], values: Callable[[Sample], list[float]]) -> Times | None:
    """Percentiles of all values, with intervals for which whole waves are drawn; None without values."""
    groups = [[value for sample in wave for value in values(sample)] for wave in waves]
    n = sum(map(len, groups))
    if n == 0:
        return None
    (p50, within50), (p90, within90), (p99, within99) = percentiles(groups, _SHARES)
    return Times(p50, p90, p99, within50, within90, within99, n)


def _by_kind(samples: Sequence[Sample]) -> dict[TextKind, KindTokens]:
    found: dict[TextKind, KindTokens] = {}
    for kind in dict.fromkeys(kind for sample in samples for kind in sample.by_kind):
        counts = [sample.by_kind.get(kind, (0, 0)) for sample in samples]
        deltas, tokens = (sum(each) for each in zip(*counts, strict=True))
        found[kind] = KindTokens(deltas, tokens / deltas)
    return found


def _median(values: Sequence[float]) -> float | None:
    return percentiles([values], (0.5,), resamples=1)[0][0] if values else None


def _decode_of_all(waves: Sequence[Wave]) -> float | None:
    """Tokens that come while every request of a wave decodes, over the time in which that is so.

    Before, a request decodes more slowly beside the prompts of others, which is no part of it.
    """
    time = tokens = 0.0
    for wave in waves:
        begin, end = max(sample.first for sample in wave), min(sample.last for sample in wave)
        if begin < end:
            time += end - begin
            tokens += sum(sample.tokens_until(end) - sample.tokens_until(begin) for sample in wave)
    return tokens / time if time else None


def _accepted(drafting: Sequence[Drafting]) -> Acceptance | None:
    """The acceptance over several answers; None without steps."""
    steps = sum(each.steps for each in drafting)
    drafted = sum(each.drafted for each in drafting)
    stood = sum(each.accepted for each in drafting)
    if not steps:
        return None
    by_position = [sum(counts) for counts in zip_longest(*(each.by_position for each in drafting), fillvalue=0)]
    return Acceptance(
        1 + stood / steps,
        stood / drafted if drafted else None,
        sum(each.forced for each in drafting),
        tuple(count / steps for count in by_position),
    )


def _counted(waves: Sequence[Sequence[int]]) -> Acceptance | None:
    steps, *stood = [sum(counts) for counts in zip_longest(*waves, fillvalue=0)] or (0,)
    if not steps:
        return None
    return Acceptance(1 + sum(stood) / steps, None, 0, tuple(each / steps for each in stood), of_all_clients=True)


def _warm_up(wave: Wave) -> WarmUp | None:
    first = _median([1000 * sample.first for sample in wave])
    if first is None:
        return None
    return WarmUp(len(wave), first, _median([value for sample in wave for value in _per_token(sample)]))


def ratio(numerator: Cell, denominator: Cell, names: tuple[str, str]) -> Ratio | None:
    """The decode speed of one cell over another's, wave by wave; None if there are no waves of both."""
    pairs = [
        Pair(str(wave), math.log(first), math.log(second))
        for wave, (first, second) in enumerate(zip(numerator.waves, denominator.waves, strict=False))
        if first and second
    ]
    if not pairs:
        return None
    mean = math.exp(sum(pair.first - pair.second for pair in pairs) / len(pairs))
    interval = bootstrap(pairs)
    within = Interval(math.exp(interval.low), math.exp(interval.high))
    return Ratio(numerator.context, numerator.concurrency, numerator.kind, *names, mean, within)
