"""`dovetail explain --replay`: a request is sent again, with drafting and without, and the answers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dovetail.cli.asked_recording import NOT_RECORDED, Asker
from dovetail.cli.recording_diff import Difference, differences
from dovetail.client.endpoint import merged
from dovetail.errors import InvalidRequest
from dovetail.gateway.recordings.recording import Recording

_UNDRAFTED = {"dovetail": {"draft_tokens": 0}}


class Comparison(NamedTuple):
    """What was compared, and where the two differ first, part by part."""

    what: str
    differences: list[Difference]


async def replayed(asker: Asker, body: Mapping[str, Any], api: str, recorded: Recording | None) -> list[Comparison]:
    """The comparisons of the answers to `body`, a request of `api`. It is sent twice: as it is, and with drafting off.

    An answer that was drawn at random is not the same again, so both are asked for at temperature 0. `recorded` is
    compared with the first of them, if it had temperature 0 too. The prompt's ids and the grammar are compared like the
    tokens: where they are equal, nothing but the drafts has changed. Raises `InvalidRequest`.
    """
    greedy = {**body, "temperature": 0}
    drafted = await asker.recording(greedy, api)
    undrafted = await asker.recording(merged(greedy, _UNDRAFTED), api)
    made = []
    if recorded is not None and _is_greedy(recorded):
        if _tokenizer(recorded) not in (None, _tokenizer(drafted)) and _tokenizer(drafted) is not None:
            raise InvalidRequest(
                "the server has another tokenizer than the recording, in which the same ids are other texts: ask the "
                "server that recorded it, or one of the same model"
            )
        made.append(Comparison("recorded, and asked for again", _answers(recorded, drafted)))
    return [*made, Comparison("with drafts, and without", _answers(drafted, undrafted))]


def _is_greedy(recorded: Recording) -> bool:
    return recorded.options is not None and recorded.options.sampling.get("temperature") == 0


def _tokenizer(recording: Recording) -> str | None:
    return None if recording.tokenizer is None else recording.tokenizer.digest


def _answers(first: Recording, second: Recording) -> list[Difference]:
    """Where prompts, grammars and answers differ, as far as both are known; requests and options differ on purpose."""
    bare = {"request": msgspec.Raw(b"null"), "options": None, "repairs": ()}
    if any(NOT_RECORDED in each.left_out for each in (first, second)):
        bare |= {"grammar": None, "tokenizer": None}
    return differences(*(msgspec.structs.replace(each, **bare) for each in (first, second)))
