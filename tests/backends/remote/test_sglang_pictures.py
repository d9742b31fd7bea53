"""Pictures to SGLang over a real connection, as its source code takes them: it is asked first which ids it keeps."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.backends.remote.sglang_pictures import is_expanded
from dovetail.completion import Picture, Sampling, TokenBatch
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.grammar import FreeText, Grammar
from tests.backends.remote.fake import Fake, completion, continuation, ids_of, sse, whole
from tests.backends.remote.test_sglang import sglang

DATA = b"a file"
PICTURE = Picture(DATA, "image/png", hashlib.sha256(DATA).hexdigest())
URL = "data:image/png;base64," + base64.b64encode(DATA).decode()
PLACE = 9
PROMPT = (5, PLACE, 6, 7)
#: What SGLang makes of it.
EXPANDED = [5, *[PLACE] * 16, 6, 7]

#: From the ids of a prompt to those that are computed; None: the answer does not tell.
Processor = Callable[[Sequence[int]], list[int] | None]


async def answer(body: dict[str, Any]) -> AsyncIterator[bytes]:
    ids = continuation(body["input_ids"], body["sampling_params"]["max_new_tokens"])
    yield sglang(ids[:3], 3, cached_tokens=18)
    yield sglang(ids, len(ids), {"type": "length", "length": len(ids)}, cached_tokens=18)
    yield sse(b"[DONE]")


class Seeing(Fake):
    """An SGLang whose model sees. `looks`: the requests for no new token."""

    def __init__(
        self, processor: Processor = lambda ids: EXPANDED, sees: bool = True, tells: bool = True, context: int = 512
    ) -> None:
        super().__init__("sglang", answer, context)
        self._processor, self._tells = processor, tells
        self.looks: list[dict[str, Any]] = []
        self.pages |= {"/model_info": {"has_image_understanding": sees}, "/generate": self._generate}

    def _generate(self, body: dict[str, Any]) -> Any:
        if body["sampling_params"]["max_new_tokens"]:
            return None
        shown = body["input_ids"]
        if "image_data" in body:
            self.looks.append(body)
            shown = self._processor(shown)
        elif not self._tells:
            shown = None
        meta = {"completion_tokens": 0, "cached_tokens": 4, "finish_reason": {"type": "length", "length": 0}}
        return {"text": "", "output_ids": [], "meta_info": meta} | (
            {} if shown is None else {"prompt_token_ids": shown}
        )


async def asked(fake: Fake, **fields: Any) -> list[TokenBatch]:
    server = fake.server()
    try:
        await server.open()
        fields = {"prompt": PROMPT, "pictures": (PICTURE,), "picture_token": PLACE} | fields
        return await whole(server, completion(8, **fields))
    finally:
        await server.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("sees", "tells", "taken"), [(True, True, True), (False, True, False), (True, False, False)])
async def test_a_server_that_sees_and_shows_its_prompts_takes_pictures(sees: bool, tells: bool, taken: bool) -> None:
    async with Seeing(sees=sees, tells=tells) as fake:
        server = fake.server()
        await server.open()
        assert server.info.pictures is taken
        await server.close()


@pytest.mark.anyio
@pytest.mark.parametrize("info", [(404, b""), (200, b"{"), (200, b"[]"), (500, b"{}")])
async def test_a_server_that_does_not_say_so_takes_none(info: tuple[int, bytes]) -> None:
    async with Seeing() as fake:
        fake.pages["/model_info"] = info
        server = fake.server()
        await server.open()
        assert not server.info.pictures
        await server.close()


@pytest.mark.anyio
async def test_the_requests_with_a_picture() -> None:
    async with Seeing() as fake:
        batches = await asked(fake, cache_salt="mine", sampling=Sampling(0.5), logprobs=None)
    (look,), (body,) = fake.looks, fake.received
    assert (look["input_ids"], look["image_data"], look["stream"]) == ([*PROMPT], [URL], False)
    assert look["return_prompt_token_ids"] is True and look["sampling_params"]["max_new_tokens"] == 0
    assert (body["input_ids"], body["image_data"], body["stream"]) == ([*PROMPT], [URL], True)
    assert "return_prompt_token_ids" not in body
    assert look["extra_key"] == body["extra_key"] == "mine"
    assert ids_of(batches) == continuation(PROMPT, 8)
    assert [batch.prompt_tokens for batch in batches] == [len(EXPANDED)] + [None] * (len(batches) - 1)
    assert batches[-1].cached == 4, "what was cached before the look, which caches the whole prompt"


@pytest.mark.anyio
async def test_a_look_has_no_grammar_and_no_end() -> None:
    async with Seeing() as fake:
        await asked(fake, grammar=Grammar(FreeText()), min_tokens=0, ignore_eos=False)
    assert "structural_tag" not in fake.looks[0]["sampling_params"]
    assert "structural_tag" in fake.received[0]["sampling_params"]


#: What SGLang does with the ids of a user's text that spells a place or an end of the turn (token 2).
REREAD: dict[str, Processor] = {
    "text became a control token": lambda ids: [5, *[PLACE] * 16, 2],
    "text became a place": lambda ids: [*EXPANDED, *[PLACE] * 16],
    "a place was left out": lambda ids: [5, 6, 7],
    "other tokens for the same text": lambda ids: [5, *[PLACE] * 16, 8],
    "other tokens for a picture": lambda ids: [5, *[10] * 16, 6, 7],
    "a token more": lambda ids: [1, *EXPANDED],
    "nothing": lambda ids: [],
}


@pytest.mark.anyio
@pytest.mark.parametrize("processor", REREAD.values(), ids=REREAD)
async def test_a_prompt_that_is_read_again_is_refused_before_anything_is_computed(processor: Processor) -> None:
    async with Seeing(processor) as fake:
        with pytest.raises(InvalidRequest, match="SGLang does not keep the tokens of this prompt beside its pictures"):
            await asked(fake)
    assert not fake.received


@pytest.mark.anyio
@pytest.mark.parametrize(("room", "new"), [(9, 8), (8, 8), (3, 3), (1, 1)])
async def test_new_tokens_are_as_many_as_fit_beside_the_pictures(room: int, new: int) -> None:
    async with Seeing(context=len(EXPANDED) + room) as fake:
        batches = await asked(fake, min_tokens=4)
    assert fake.received[0]["sampling_params"]["max_new_tokens"] == new
    assert fake.received[0]["sampling_params"]["min_new_tokens"] == min(new, 4)
    assert ids_of(batches) == continuation(PROMPT, new) and batches[-1].finish == "length"


@pytest.mark.anyio
async def test_pictures_that_fill_the_context_are_refused() -> None:
    async with Seeing(context=len(EXPANDED)) as fake:
        with pytest.raises(ContextExceeded, match="the prompt has 19 tokens with its pictures"):
            await asked(fake)
    assert not fake.received


@pytest.mark.anyio
async def test_a_server_that_stops_telling_is_an_error() -> None:
    async with Seeing(lambda ids: None) as fake:
        with pytest.raises(EngineError, match="does not tell which tokens"):
            await asked(fake)
    assert not fake.received


@pytest.mark.anyio
async def test_a_picture_that_it_cannot_read_is_the_clients_error() -> None:
    async with Seeing() as fake:
        server = fake.server()
        await server.open()
        message = {"error": {"message": "Error while loading data data:image: cannot identify image file"}}
        fake.pages["/generate"] = (400, json.dumps(message).encode())
        with pytest.raises(InvalidRequest, match="cannot identify image file"):
            await whole(server, completion(8, PROMPT, pictures=(PICTURE,), picture_token=PLACE))
        await server.close()


RUNS = st.lists(st.tuples(st.sampled_from((PLACE, 1, 2)), st.integers(1, 3)), max_size=9)


@given(RUNS, st.lists(st.integers(1, 4), min_size=40, max_size=40), st.data())
def test_a_prompt_is_expanded_if_and_only_if_places_alone_grew(
    runs: list[tuple[int, int]], sizes: list[int], data: st.DataObject
) -> None:
    prompt = [token for token, size in runs for _ in range(size)]
    shown = [token for token, size in zip(prompt, sizes, strict=False) for _ in range(size if token == PLACE else 1)]
    assert is_expanded(prompt, shown, PLACE)
    others = [at for at, token in enumerate(shown) if token != PLACE]
    if others:
        at = data.draw(st.sampled_from(others))
        for changed in ([3], [], [shown[at]] * 2, [PLACE], [1, PLACE, 1]):
            assert not is_expanded(prompt, [*shown[:at], *changed, *shown[at + 1 :]], PLACE)
