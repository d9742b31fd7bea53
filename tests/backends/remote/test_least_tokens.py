"""`min_tokens` on llama.cpp: the first tokens come without an end, in a request of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.completion import Sampling, TokenBatch
from dovetail.errors import InvalidRequest
from dovetail.grammar import FreeText, Grammar
from tests.backends.remote.fake import EOS, PROMPT, Fake, answered, ids_of, sse
from tests.backends.remote.test_llama_cpp import ending, event_of


async def reluctant(body: dict[str, Any]) -> AsyncIterator[bytes]:
    """A model that would rather say nothing: it ends as soon as it may, and says its prompt's length until then."""
    for count in range(1, body["n_predict"] + 1):
        if not body.get("ignore_eos") and len(body["prompt"]) + count > 5:
            yield ending(count, "eos", draft_n=1, draft_n_accepted=1)
            return
        yield event_of([10 + len(body["prompt"]) + count], count)
    yield ending(body["n_predict"], "limit", draft_n=4, draft_n_accepted=2)


def whole(fields: dict[str, Any], check: Any = None, answer: Any = reluctant) -> list[TokenBatch]:
    return answered("llamacpp", answer, fields, check)


def test_the_first_tokens_and_the_rest() -> None:
    def check(fake: Fake) -> None:
        first, rest = fake.received
        assert (first["prompt"], first["n_predict"], first["ignore_eos"]) == ([*PROMPT], 3, True)
        assert first["logit_bias"] == [[7, -1.0], [EOS, False], [9, False]]
        assert (rest["prompt"], rest["n_predict"]) == ([*PROMPT, 14, 15, 16], 5)
        assert "ignore_eos" not in rest and rest["logit_bias"] == [[7, -1.0]]

    fields = {"min_tokens": 3, "stop_token_ids": (9,), "sampling": Sampling(0, logit_bias={7: -1.0})}
    batches = whole(fields, check)
    assert ids_of(batches) == [14, 15, 16]
    assert [batch.finish for batch in batches[:-1]] == [None] * (len(batches) - 1)
    last = batches[-1]
    assert (last.finish, last.cached, last.drafted, last.accepted) == ("stop", 2, 5, 3)
    assert all(batch.cached is None and batch.drafted is None for batch in batches[:-1])


def test_without_it_the_answer_ends_at_once_and_with_all_of_it_in_one_request() -> None:
    assert ids_of(whole({"max_tokens": 8})) == [14, 15]

    def check(fake: Fake) -> None:
        assert [body["n_predict"] for body in fake.received] == [4]

    batches = whole({"max_tokens": 4, "min_tokens": 4}, check)
    assert (len(ids_of(batches)), batches[-1].finish) == (4, "length")


@pytest.mark.parametrize("spelled", [True, False])
def test_a_token_that_is_kept_back_comes_with_the_next_ones(spelled: bool) -> None:
    """The first token ends inside a character, so that a request for one token shows none."""

    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body["n_predict"] == 1 or not spelled:
            yield ending(body["n_predict"], "limit")
            return
        yield event_of([40, 41], 2, "é")
        yield ending(2, "eos")

    def check(fake: Fake) -> None:
        sent = [(body["n_predict"], body.get("ignore_eos", False)) for body in fake.received]
        assert sent == [(1, True), (4, True), *([] if spelled else [(8, False)])]

    batches = whole({"min_tokens": 1}, check, answer)
    assert ids_of(batches) == ([40, 41] if spelled else [])
    assert batches[-1].finish == ("stop" if spelled else "length")


def test_a_grammar_would_begin_anew() -> None:
    with pytest.raises(InvalidRequest) as refused:
        whole({"min_tokens": 2, "grammar": Grammar(FreeText())})
    assert refused.value.param == "min_tokens"


def test_an_error_of_the_first_request_is_that_of_the_completion() -> None:
    async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield sse({"error": {"code": 400, "message": "no"}})

    with pytest.raises(InvalidRequest):
        whole({"min_tokens": 2}, answer=answer)
