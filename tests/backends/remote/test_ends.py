"""Each server gets the conditions for an answer's end: stop tokens, `min_tokens`, `ignore_eos`, and biases."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dovetail.backends.remote.dialect import Limits
from dovetail.backends.remote.llama_cpp import LlamaCpp
from dovetail.backends.remote.sglang import SGLang
from dovetail.backends.remote.vllm import VLLM
from dovetail.completion import Sampling
from dovetail.errors import InvalidRequest
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, FreeText, Grammar, Loosened
from tests.backends.remote.fake import EOS, VOCABULARY, completion

ENDLESS = Grammar(Choice((Concat((ControlToken("[end]"), FreeText())), Loosened(FreeText(), "tools[0]", ()))))
ENDING = Grammar(Concat((ExactText("yes"), ControlToken("[end]"))))
#: A completion's fields about its end, and the same for each server.
ENDS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"stop_token_ids": (7,)}, {"stop_token_ids": [EOS, 7]}, {"stop_token_ids": [EOS, 7]}),
    ({"min_tokens": 2}, {"min_tokens": 2}, {"min_new_tokens": 2}),
    ({"min_tokens": 2, "grammar": ENDLESS}, {"min_tokens": 2}, {"min_new_tokens": 2}),
    (
        {"ignore_eos": True, "stop_token_ids": (7,)},
        {"min_tokens": 4, "stop_token_ids": [EOS]},
        {"min_new_tokens": 4, "stop_token_ids": [EOS]},
    ),
    ({"sampling": Sampling(0, logit_bias={5: -1.5})}, {"logit_bias": {"5": -1.5}}, {"logit_bias": {"5": -1.5}}),
]


@pytest.mark.parametrize(("fields", "vllm", "sglang"), ENDS)
def test_the_end_of_an_answer_in_each_servers_fields(
    fields: dict[str, Any], vllm: dict[str, Any], sglang: dict[str, Any]
) -> None:
    limits = Limits("m", 512, None)

    def sent(dialect: VLLM | SGLang | LlamaCpp) -> Any:
        body = dialect.body(completion(4, **fields), VOCABULARY, limits, "x")
        return json.loads(msgspec.json.encode(body))

    assert sent(VLLM()).items() >= vllm.items()
    assert sent(SGLang())["sampling_params"].items() >= sglang.items()
    if "min_tokens" in fields:
        with pytest.raises(InvalidRequest) as refused:
            sent(LlamaCpp())
        assert refused.value.param == "min_tokens"
    else:
        assert sent(LlamaCpp()).get("ignore_eos", False) == fields.get("ignore_eos", False)
        assert sent(LlamaCpp()).get("logit_bias", []) == ([[5, -1.5]] if "sampling" in fields else [])


def test_the_salt_of_the_cache_in_each_servers_field() -> None:
    limits, salted = Limits("m", 512, None), completion(4, cache_salt="abc")
    for dialect, field in ((VLLM(), "cache_salt"), (SGLang(), "extra_key")):
        assert dialect.salts_cache and dialect.body(salted, VOCABULARY, limits, "x")[field] == "abc"
        assert field not in dialect.body(completion(4), VOCABULARY, limits, "x")
    assert not LlamaCpp().salts_cache and "abc" not in str(LlamaCpp().body(salted, VOCABULARY, limits, "x"))


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 2}])
@pytest.mark.parametrize("dialect", [VLLM(), SGLang()])
def test_a_grammar_that_ends_cannot_go_on(dialect: VLLM | SGLang, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="tools or a response_format") as refused:
        dialect.body(completion(4, grammar=ENDING, **fields), VOCABULARY, Limits("m", 512, None), "x")
    assert refused.value.param == next(iter(fields))
