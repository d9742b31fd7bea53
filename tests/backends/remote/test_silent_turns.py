"""A model that would end its turn after thinking, behind a llama.cpp without our grammar: no turn is silent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from dovetail.backends.remote import RemoteEngine, Server, Vocabulary
from dovetail.events import is_visible
from dovetail.gateway import Settings
from dovetail.tokens import Tokenizer, raw_prompt
from tests.backends.remote.fake import Fake, run
from tests.backends.remote.test_llama_cpp import ending, event_of
from tests.gateway.scripted import MODEL, events_of, folded, in_process
from tests.tools import taking, tool

_WEATHER = tool("get_weather", taking({"city": {"type": "string"}}))
_THOUGHTS = ("", "Hm.", "The user asks for the weather.\n", "I should call get_weather.")
_ANSWERS = ("It rains.", " 4", "\n\nYes", "<b>")
_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
)


class EndsAfterThinking:
    """A model whose likeliest token after its reasoning is the end of the turn. It answers if it may not end.

    `thought`, `closes`: its reasoning, and whether it closes that itself. `answer`: what it says then.
    """

    def __init__(self, tok: Tokenizer) -> None:
        self._end = tok.control["<|im_end|>"]
        self._close = tok.control["</think>"]
        self._opening = tok.control["<think>"]
        self.thought: list[int] = []
        self.closes = False
        self.answer: list[int] = []

    def next(self, ids: list[int], banned: set[int]) -> int:
        """The likeliest token after `ids` that is not `banned`."""
        said = ids[len(ids) - 1 - ids[::-1].index(self._opening) + 1 :]
        if len(said) < len(self.thought):
            return self.thought[len(said)]
        closed = self._close in said
        if self.closes and not closed:
            return self._close
        begun = said[len(self.thought) + closed :]
        rest = [*self.answer[len(begun) :], self._end]
        ranked = rest if begun else [self._end, *rest]
        return next(token for token in ranked if token not in banned)

    async def __call__(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """llama.cpp's events for one request."""
        ids = [*body["prompt"]]
        banned = {token for token, bias in body.get("logit_bias", ()) if bias is False}
        banned |= {self._end} if body.get("ignore_eos") else set()
        for count in range(1, body["n_predict"] + 1):
            ids.append(self.next(ids, banned))
            if ids[-1] == self._end:
                yield ending(count, "eos")
                return
            yield event_of(ids[-1:], count)
        yield ending(body["n_predict"], "limit")


@pytest.mark.parametrize("turns", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_turn_is_silent(small_tokenizer: Tokenizer, turns: int) -> None:
    tok, model, drawn = small_tokenizer, EndsAfterThinking(small_tokenizer), random.Random(turns)
    counted: Counter[str] = Counter()
    call = [*raw_prompt(_CALL, tok, prefix=False, controls=True).ids(tok)]

    async def main() -> None:
        async with Fake("llamacpp", model, context=4096) as fake:
            vocabulary = Vocabulary(tok.vocab_size, (tok.control["<|im_end|>"],), tok.control)
            engine = RemoteEngine([Server(fake.url, vocabulary)])
            await engine.start()
            async with in_process(engine, tok, Settings(served_model_name=MODEL, strict="off")) as client:
                for _ in range(turns):
                    model.thought = [*tok.encode(drawn.choice(_THOUGHTS))]
                    model.closes = drawn.random() < 0.5
                    calls = drawn.random() < 0.3
                    model.answer = call if calls else [*tok.encode(drawn.choice(_ANSWERS))]
                    counted.update(await turn(client, stream=drawn.random() < 0.5, silent=False))
                before = len(fake.received)
                counted.update(f"allowed {kind}" for kind in await turn(client, stream=False, silent=True))
                assert len(fake.received) == before + 1
            await engine.stop()

    run(main)
    # A check of the check: the same model is silent where it may be.
    assert counted == {"continued": turns, "allowed silent": 1}


async def turn(client: httpx.AsyncClient, *, stream: bool, silent: bool) -> list[str]:
    """What became of one turn: "silent" if it says nothing, "continued" if a guard has acted."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": [_WEATHER], "stream": stream}
    response = await client.post("/v1/chat/completions", json=body | {"dovetail": {"silent": silent}, "max_tokens": 99})
    assert response.status_code == 200, response.text
    if stream:
        (choice,) = folded(event for event in events_of(response.text) if event != "[DONE]")
    else:
        (choice,) = response.json()["choices"]
    message = choice["message"]
    extension = message.get("dovetail", {})
    assert "defects" not in extension and choice["finish_reason"] in ("stop", "tool_calls")
    says = is_visible(message["content"]) or bool(message.get("tool_calls"))
    return ["continued" for _ in extension.get("guards", ())] + ([] if says else ["silent"])
