"""Drafting by looking the sequence up in itself: what followed last time these tokens came.

It needs no weights, and agents repeat themselves: files they read and write back, keys, ids of earlier calls. After
prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding) and SuffixDecoding
(https://arxiv.org/abs/2411.04975), with chains of earlier places, as in LZ77, in place of a suffix tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.drafting.base import Draft, Observed
from dovetail.engine.request import Request
from dovetail.errors import EngineError

# Figures for these are in docs/decisions/0011-what-lookup-drafting-keeps.md.
MIN_MATCH = 2
MAX_MATCH = 32
CANDIDATES = 32
_LIMIT = 1 << 17


class SuffixIndex:
    """One sequence, and where each pair of its tokens came before.

    What it drafts depends on the last `limit` tokens alone: of the last 32 places where the last two tokens came
    before, those where most tokens before agree as well, at most 32, are asked what followed; a token is drafted while
    more than half of them that agree with the draft so far say so, and no more tokens than agreed before.

    It holds at most twice `limit` tokens, of 120 bytes each when no pair comes twice, so 32 MB as it is set up. On
    average a token is taken in in a fraction of a microsecond; a draft takes a few, at worst tens, whatever the tokens.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self.seen = 0
        """How many tokens it was given."""
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[int] = []
        # For each pair of tokens the place after it, where it came last with something to follow; for each place the
        # one before it of the same pair, or 0. The first two places stand behind no pair and are never asked.
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []
        self._last = self._pair = 0

    def __len__(self) -> int:
        """How many tokens it holds."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` follow."""
        self.seen += len(tokens)
        if len(self._tokens) + len(tokens) > 2 * self._limit:
            # Places are indices into the tokens that are held, so all are found anew, once in `limit` tokens.
            tokens = [*self._tokens, *tokens[-self._limit :]][-self._limit :]
            self._clear()
        latest, earlier = self._latest, self._earlier
        last, pair = self._last, self._pair
        for place, token in enumerate(tokens, len(self._tokens)):
            earlier.append(latest.get(pair, 0))
            latest[pair] = place
            pair = last << 30 | token  # two ids in one int: faster than a tuple
            last = token
        self._last, self._pair = last, pair
        self._tokens += tokens

    def draft(self, count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        tokens = self._tokens
        end = len(tokens)
        matched, places = self._longest_matches()
        for _ in range(min(count, matched) if places else 0):
            followers = [tokens[place] for place in places]
            token = sorted(followers)[len(followers) // 2]  # what more than half say is in the middle
            if followers.count(token) * 2 <= len(followers):
                break
            # Where a match overlaps the end, what follows it is the draft itself.
            tokens.append(token)
            places = [place + 1 for place, follower in zip(places, followers, strict=True) if follower == token]
        drafted = tokens[end:]
        del tokens[end:]
        return drafted

    def _longest_matches(self) -> tuple[int, list[int]]:
        """The most tokens before any candidate that are equal to the last ones, and the candidates that have them."""
        tokens = self._tokens
        end = len(tokens)
        start = max(0, end - self._limit)
        matched, places = MIN_MATCH, list[int]()
        place = self._latest.get(self._pair, 0)
        for _ in range(CANDIDATES):
            if not place:
                break
            if place - start >= matched and tokens[place - matched : place] == tokens[end - matched :]:
                longest = min(MAX_MATCH, place - start)
                length = matched
                while length < longest and tokens[place - length - 1] == tokens[end - length - 1]:
                    length += 1
                if length > matched:
                    matched, places = length, []
                places.append(place)
            place = self._earlier[place]
        return matched, places


class Lookup:
    """The drafter where there is no other: an index for each request, from its first proposal on."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._indices: dict[str, SuffixIndex] = {}

    def start(self, request: Request, cached: int) -> int:
        return cached

    def observe(self, observed: Sequence[Observed]) -> None:
        """Nothing to keep: `propose` is given the tokens."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return [Draft(self._index(request).draft(count)) for request, count in zip(requests, counts, strict=True)]

    def release(self, request: Request) -> None:
        self._indices.pop(request.id, None)

    def check_integrity(self, requests: set[str]) -> None:
        lost = self._indices.keys() - requests
        if lost:
            raise EngineError(f"lookup drafting keeps tokens of requests that are gone: {', '.join(sorted(lost))}")

    def _index(self, request: Request) -> SuffixIndex:
        index = self._indices.setdefault(request.id, SuffixIndex())
        index.extend(request.tokens[index.seen :])
        return index
