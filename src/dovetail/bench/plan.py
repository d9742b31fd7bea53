"""What is measured: contexts and concurrencies, kinds of answers, and how many requests."""

from __future__ import annotations

import random
import re
from typing import Literal

import msgspec

from dovetail.errors import InvalidRequest

#: own: prompts of the user's.
Kind = Literal["prose", "calls", "own"]
KINDS: tuple[Kind, ...] = ("prose", "calls")
#: off: no drafts. fixed: the drafter's own number in each step. gated: as many as pay. unknown: the server takes no
#: setting for it. `dovetail tune` has other names.
Speculation = str
_MOST_TOKENS = 10_000_000
_MOST_CONCURRENT = 1024


class Plan(msgspec.Struct, frozen=True):
    """`tokens`: of each answer. `requests`: the fewest timed requests of a cell. `seed`: of the prompts' own words.

    `shared_prefix`: whether all prompts of a length have the same beginning. `alike`: whether all variants get the same
    prompts, which a cache then has.
    """

    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    kinds: tuple[Kind, ...]
    tokens: int
    requests: int
    seed: int
    shared_prefix: bool = False
    alike: bool = False

    def waves(self, concurrency: int) -> int:
        """Timed waves of a cell, at least two, so that there is a spread. One more wave before them is dropped."""
        return max(-(-self.requests // concurrency), 2)


def new_seed() -> int:
    return random.SystemRandom().randrange(2**32)


def parse_matrix(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Contexts and concurrencies of "1k,8k x 1,4". Raises `InvalidRequest`."""
    parts = re.split(r"\s*[x×]\s*", text.strip())
    if len(parts) != 2:
        raise InvalidRequest(f'--matrix must be contexts x concurrencies, as in "1k,8k x 1,4", not {text!r:.80}')
    return _numbers(parts[0], "context", _MOST_TOKENS), _numbers(parts[1], "concurrency", _MOST_CONCURRENT)


def _numbers(text: str, name: str, most: int) -> tuple[int, ...]:
    numbers = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d{1,8})(k?)", word.strip(), re.ASCII | re.IGNORECASE)
        number = 0 if match is None else int(match[1]) * (1024 if match[2] else 1)
        if not 0 < number <= most:
            raise InvalidRequest(f"--matrix: {word.strip()!r:.40} is no {name}; it must be 1 to {most}, k is 1,024")
        numbers.append(number)
    return tuple(dict.fromkeys(numbers))
