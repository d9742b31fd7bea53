"""Lookup drafting: propose what followed when the last tokens occurred earlier in the same sequence.

It needs no weights, and agents repeat themselves: files that they read and write back, keys, ids of earlier calls.
After prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding) and SuffixDecoding
(https://arxiv.org/abs/2411.04975), with chains of earlier positions, as in LZ77, in place of a suffix tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.drafting.base import Draft, Observed
from dovetail.engine.request import Request
from dovetail.errors import EngineError

# docs/decisions/0011-what-lookup-drafting-keeps.md has figures for these.
MIN_MATCH = 2
MAX_MATCH = 32
CANDIDATES = 32
_LIMIT = 1 << 17


class SuffixIndex:
    """The tokens of one sequence, with the earlier positions of each pair of tokens.

    How it drafts, from the last `limit` tokens only: of the last 32 positions of the sequence's last two tokens, take
    those where the longest run of tokens before agrees too (at most 32 tokens). Draft the token that followed at more
    than half of these positions, then the next in the same way among the positions that agree with the draft. The draft
    is at most as long as the run that agreed.

    Memory: at most twice `limit` tokens of 120 bytes each if no pair occurs twice, 32 MB by default. Time: on average a
    fraction of a microsecond to add a token; a few microseconds for a draft, at worst tens.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self.seen = 0
        """How many tokens were added since the start."""
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[int] = []
        # For each pair of tokens the position after its last occurrence that has a token there; for each position the
        # one before it for the same pair, or 0. The first two positions follow no pair and are never used.
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []
        self._last = self._pair = 0
        self._matches: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        """How many tokens the index has."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the next `tokens` of the sequence."""
        self.seen += len(tokens)
        if len(self._tokens) + len(tokens) > 2 * self._limit:
            # Positions are indices into the remaining tokens, so the index is built again, once in `limit` tokens.
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
        self._matches = None

    def draft(self, count: int) -> list[int]:
        """At most `count` tokens that may come next."""
        tokens = self._tokens
        end = len(tokens)
        matched, places = self._longest()
        for _ in range(min(count, matched) if places else 0):
            followers = [tokens[place] for place in places]
            token = sorted(followers)[len(followers) // 2]  # a token that more than half have is in the middle
            if followers.count(token) * 2 <= len(followers):
                break
            # Where a match overlaps the end of the sequence, the draft itself follows it.
            tokens.append(token)
            places = [place + 1 for place, follower in zip(places, followers, strict=True) if follower == token]
        drafted = tokens[end:]
        del tokens[end:]
        return drafted

    def matched(self) -> int:
        """The length of the longest match with the last tokens, 0 if there is no match."""
        matched, places = self._longest()
        return matched if places else 0

    def _longest(self) -> tuple[int, list[int]]:
        if self._matches is None:
            self._matches = self._longest_matches()
        return self._matches

    def _longest_matches(self) -> tuple[int, list[int]]:
        """The length of the longest match with the last tokens, and the positions after the matches of that length."""
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
    """The lookup drafter: an index for each request, from its first proposal on."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._indices: dict[str, SuffixIndex] = {}

    def start(self, request: Request, cached: int) -> int:
        return cached

    def observe(self, observed: Sequence[Observed]) -> None:
        """Does nothing, because `propose` reads the tokens from the requests."""

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> list[Draft]:
        return [Draft(self._index(request).draft(count)) for request, count in zip(requests, counts, strict=True)]

    def matched(self, request: Request) -> int:
        return self._index(request).matched()

    def release(self, request: Request) -> None:
        self._indices.pop(request.id, None)

    def check_integrity(self, requests: set[str]) -> None:
        lost = self._indices.keys() - requests
        if lost:
            raise EngineError(f"the lookup drafter has an index for requests that ended: {', '.join(sorted(lost))}")

    def _index(self, request: Request) -> SuffixIndex:
        index = self._indices.setdefault(request.id, SuffixIndex())
        if len(request.tokens) > index.seen:
            index.extend(request.tokens[index.seen :])
        return index
