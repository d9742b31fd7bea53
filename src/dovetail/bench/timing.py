"""The times of one request, from the bytes of its stream and when they came."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec

from dovetail.client.answer import mapping
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import Arrival

#: Kinds of text: content; reasoning; names, keys and punctuation of a call's arguments; what its strings hold.
TextKind = Literal["prose", "reasoning", "structure", "strings"]

_COUNTS = ("steps", "drafted", "accepted", "forced")  # of usage.speculation
_SAME = 1e-9  # seconds by which two times may differ that are one
_END_OF_EVENT = re.compile(rb"\r?\n\r?\n")


class Drafting(msgspec.Struct, frozen=True):
    """Steps of the engine for one answer, and its draft tokens. `by_position`: accepted at each position."""

    steps: int
    drafted: int
    accepted: int
    forced: int = 0
    by_position: tuple[int, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """One timed request. Times are seconds after it was sent.

    `marks`: of each delta with tokens, when it came and the tokens so far, by usage in every chunk, else (`estimated`)
    by characters. `answer`: the first delta of content or a call; None without one. `end`: the end of the stream.
    `by_kind`: deltas and tokens of each kind of text, after the first delta; empty where they are not counted.
    """

    marks: tuple[tuple[float, int], ...]
    answer: float | None
    end: float
    estimated: bool
    prompt_tokens: int
    cached_tokens: int
    drafting: Drafting | None = None
    by_kind: dict[TextKind, tuple[int, int]] = {}

    @property
    def first(self) -> float:
        return self.marks[0][0]

    @property
    def first_tokens(self) -> int:
        return self.marks[0][1]

    @property
    def last(self) -> float:
        return self.marks[-1][0]

    @property
    def tokens(self) -> int:
        return self.marks[-1][1]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.marks)]

    def tokens_until(self, seconds: float) -> int:
        return max((tokens for time, tokens in self.marks if time <= seconds + _SAME), default=0)

    @property
    def time_per_token(self) -> float | None:
        """Seconds per token after the first delta; None if all tokens were in it."""
        after = self.tokens - self.first_tokens
        return (self.last - self.first) / after if after > 0 and self.last > self.first else None


class _Delta(msgspec.Struct, frozen=True):
    """`counted`: tokens of the answer so far, if the chunk has usage. `shown`: it has content or a part of a call.

    `kind`: of most of its characters; None without any.
    """

    time: float
    characters: int
    shown: bool
    counted: int | None
    kind: TextKind | None


def sample(arrival: Arrival) -> Sample:
    """The times of a streamed answer. Raises `NotTested` if it has no usage or no tokens."""
    deltas: list[_Delta] = []
    kinds = _Kinds()
    usage: Mapping[str, Any] = {}
    drafting: Mapping[str, Any] = {}
    for time, chunk in _chunks(arrival):
        usage = mapping(chunk.get("usage")) or usage
        drafting = mapping(mapping(chunk.get("metrics")).get("speculative_decoding")) or drafting
        deltas += _deltas(time, chunk, kinds)
    prompt, total = (_count(usage, f"{part}_tokens") for part in ("prompt", "completion"))
    if prompt is None or total is None:
        raise NotTested("its streams have no usage (stream_options.include_usage)")
    marks = _marks(deltas, total)
    if not marks:
        raise NotTested("it streamed no token")
    shown = next((delta.time for delta in deltas if delta.shown), None)
    cached = _count(mapping(usage.get("prompt_tokens_details")), "cached_tokens") or 0
    return Sample(
        marks=tuple((time - arrival.sent, tokens) for time, tokens in marks),
        answer=None if shown is None else shown - arrival.sent,
        end=arrival.pieces[-1][0] - arrival.sent,
        estimated=all(delta.counted is None for delta in deltas),
        prompt_tokens=prompt,
        cached_tokens=cached,
        drafting=_drafting(usage, drafting),
        by_kind=_by_kind(deltas),
    )


def _chunks(arrival: Arrival) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """The JSON object of each event, and when its last byte came."""
    pieces, at = iter(arrival.pieces), 0
    time, until = 0.0, 0
    for end in _END_OF_EVENT.finditer(arrival.reply.body):
        while until < end.end():
            time, until = next(pieces)
        data = arrival.reply.body[at : end.start()].strip()
        at = end.end()
        if data.startswith(b"data:"):
            try:
                chunk = json.loads(data[5:])
            except (ValueError, RecursionError):
                continue  # [DONE]
            yield time, mapping(chunk)


def _deltas(time: float, chunk: Mapping[str, Any], kinds: _Kinds) -> Iterator[_Delta]:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return
    delta = mapping(mapping(choices[0]).get("delta"))
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    content, calls = delta.get("content") or "", delta.get("tool_calls") or ""
    characters = len(str(thought)) + len(str(content)) + sum(map(_call_characters, calls))
    counted = _count(mapping(chunk.get("usage")), "completion_tokens")
    kind = kinds.of(str(thought), str(content), [mapping(piece) for piece in calls])
    yield _Delta(time, characters, bool(content or calls), counted, kind)


def _call_characters(piece: Any) -> int:
    function = mapping(mapping(piece).get("function"))
    return len(str(function.get("name") or "")) + len(str(function.get("arguments") or ""))


class _Kinds:
    """Tells kinds of text apart, over the deltas of one answer."""

    def __init__(self) -> None:
        self._in_string = self._escaped = False

    def of(self, thought: str, content: str, calls: Sequence[Mapping[str, Any]]) -> TextKind | None:
        """The kind of most characters of a delta; None without any."""
        counts: Counter[TextKind] = Counter({"reasoning": len(thought), "prose": len(content)})
        for piece in calls:
            function = mapping(piece.get("function"))
            if name := function.get("name"):
                self._in_string = self._escaped = False
                counts["structure"] += len(str(name))
            for character in str(function.get("arguments") or ""):
                counts["strings" if self._inside(character) else "structure"] += 1
        kind, most = counts.most_common(1)[0]
        return kind if most else None

    def _inside(self, character: str) -> bool:
        """Whether `character`, the next one of the arguments, is inside a JSON string. Its quotes are outside."""
        if not self._in_string:
            self._in_string = character == '"'
            return False
        if self._escaped or character == "\\":
            self._escaped = not self._escaped
            return True
        self._in_string = character != '"'
        return self._in_string


def _by_kind(deltas: Sequence[_Delta]) -> dict[TextKind, tuple[int, int]]:
    """Deltas and tokens by kind. The first delta is left out, because it may hold several steps."""
    found: dict[TextKind, tuple[int, int]] = {}
    so_far: int | None = None
    for delta in deltas:
        if delta.counted is None:
            continue
        if delta.kind is not None and so_far is not None and delta.counted > so_far:
            number, tokens = found.get(delta.kind, (0, 0))
            found[delta.kind] = number + 1, tokens + delta.counted - so_far
        so_far = delta.counted if delta.counted > (so_far or 0) else so_far
    return found


def _marks(deltas: list[_Delta], total: int) -> list[tuple[float, int]]:
    """For each delta with tokens, its time and the tokens until then."""
    if any(delta.counted is not None for delta in deltas):
        marks, so_far = [], 0
        for delta in deltas:
            if (delta.counted or 0) > so_far:
                so_far = delta.counted or 0
                marks.append((delta.time, so_far))
        return marks
    full = [delta for delta in deltas if delta.characters]
    sums = [*accumulate(delta.characters for delta in full)]
    return [
        (delta.time, max(round(total * characters / sums[-1]), 1)) for delta, characters in zip(full, sums, strict=True)
    ]


def _drafting(usage: Mapping[str, Any], metrics: Mapping[str, Any]) -> Drafting | None:
    """The drafting that usage reports (Dovetail), or vLLM's object for one request."""
    ours = mapping(usage.get("speculation"))
    steps = _count(metrics, "num_spec_steps")
    if ours:
        made, drafted, accepted, forced = (_count(ours, name) or 0 for name in _COUNTS)
        return Drafting(made, drafted, accepted, forced)
    if steps is None:
        return None
    drafted, accepted = (_count(metrics, f"num_{name}_tokens") or 0 for name in ("draft", "accepted_draft"))
    return Drafting(steps, drafted, accepted, by_position=_by_position(metrics))


def _by_position(metrics: Mapping[str, Any]) -> tuple[int, ...]:
    """Steps that accepted at least 1, 2, … draft tokens, from the histogram of accepted tokens a step."""
    histogram = metrics.get("acceptance_histogram")
    if not isinstance(histogram, list) or not all(isinstance(each, int) for each in histogram):
        return ()
    return tuple(sum(histogram[position:]) for position in range(1, len(histogram)))


def _count(value: Mapping[str, Any], name: str) -> int | None:
    number = value.get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None
