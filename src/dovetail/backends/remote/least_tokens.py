"""`min_tokens` on a server that can generate with an end or without, but has no least number of tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from dovetail.completion import Completion, TokenBatch

#: How many of the last tokens of an answer a server may keep back, because they end inside a character.
_MOST_KEPT_BACK = 3


async def in_requests(
    complete: Callable[[Completion], AsyncGenerator[TokenBatch]], completion: Completion
) -> AsyncGenerator[TokenBatch]:
    """Stream `completion` by requests to `complete`: its first `min_tokens` tokens without an end, then the rest.

    Where the server keeps one of the first tokens back, a few more are generated without an end, once.
    """
    ids: list[int] = []
    counts: TokenBatch | None = None
    extras = iter((0, _MOST_KEPT_BACK))
    while True:
        room, missing = completion.max_tokens - len(ids), completion.min_tokens - len(ids)
        extra = next(extras, None) if missing > 0 else None
        least = 0 if extra is None else min(missing + extra, room)
        part = msgspec.structs.replace(
            completion, prompt=(*completion.prompt, *ids), max_tokens=least or room, min_tokens=least
        )
        async with aclosing(complete(part)) as batches:
            async for batch in batches:
                ids += batch.ids
                if batch.finish is None:
                    yield batch
                    continue
                counts = batch if counts is None else _with_counts(batch, counts)
                if batch.finish == "stop" or least in (0, room):
                    yield counts
                    return
                yield msgspec.structs.replace(batch, finish=None, cached=None, drafted=None, accepted=0)


def _with_counts(last: TokenBatch, before: TokenBatch) -> TokenBatch:
    """`last` with the counts of all requests. Only the first says what was cached of the prompt."""
    drafted = None if None in (before.drafted, last.drafted) else (before.drafted or 0) + (last.drafted or 0)
    return msgspec.structs.replace(
        last, cached=before.cached, drafted=drafted, accepted=before.accepted + last.accepted
    )
