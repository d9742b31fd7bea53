"""Why engines run without xgrammar's cache: masks of one grammar are taken for another's that names other tokens."""

from __future__ import annotations

import json

import pytest

from dovetail.grammar import Control, Grammar, Literal, Sequence

xgrammar = pytest.importorskip("xgrammar", reason="needs pip install --no-deps xgrammar apache-tvm-ffi")

CONTROL = {"<one>": 1, "<two>": 2}


@pytest.mark.parametrize(
    "limit",
    [
        0,
        pytest.param(
            -1,
            marks=pytest.mark.xfail(
                strict=True,
                reason="xgrammar 0.2.8; once mended, drop VLLM_XGRAMMAR_CACHE_MB in backends/vllm and plugins/vllm",
            ),
        ),
    ],
)
def test_grammars_of_one_shape_are_not_mixed_up(limit: int) -> None:
    info = xgrammar.TokenizerInfo(["a", *CONTROL], stop_token_ids=[])
    compiler = xgrammar.GrammarCompiler(info, cache_limit_bytes=limit)
    for literal, token in CONTROL.items():
        grammar = Grammar(Sequence((Literal("a"), Control(literal))))
        compiled = compiler.compile_structural_tag(json.dumps(grammar.structural_tag(CONTROL)))
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
        assert matcher.accept_token(0)
        matcher.fill_next_token_bitmask(mask)
        assert mask[0, 0].item() & 0b111 == 1 << token
