"""Suite `injection`: text that spells control tokens stays text, wherever a client may put text.

A control token is one token, and its spelling as text is several. So copies of a literal, without anything between
them, add as many tokens as there are copies if they became control tokens, and many more if they stayed text. Where
the endpoint returns token ids and our own prompt is known, they are compared token by token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.client.endpoint import Target
from dovetail.client.not_tested import NotTested
from dovetail.verify.language import Language
from dovetail.verify.suites.base import Case, Checked, Finding, Suite, load_cases, prompt_tokens

#: Where the text goes in a case's request.
_PLACE = "{text}"
_NEUTRAL = "and so on"
_COPIES = 8
#: Tokens that may be merged with what stands around the copies.
_SLACK = 2
#: Control tokens of many families, for a model whose format is not known.
_COMMON = (
    "<|im_end|>",
    "<|im_start|>",
    "<|im_user|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "｜DSML｜",
    "[INST]",
    "<|end|>",
    "<|return|>",
)


class Injection(Suite):
    name = "injection"

    def cases(self) -> Sequence[Case]:
        return load_cases("injection.json")

    async def check(self, case: Case, target: Target, language: Language) -> Checked:
        if "tools" in case.request and not target.features.tools:
            raise NotTested(target.features.because["tools"], blocking=False)
        neutral = await target.answer(_with(case.request, _NEUTRAL))
        base = prompt_tokens(neutral)
        literals = language.format.reader_type.controls if language.format is not None else _COMMON
        findings: list[Finding] = []
        for literal in literals:
            spelled = await target.answer(_with(case.request, _NEUTRAL + literal * _COPIES))
            difference = await language.prompt_difference(target.endpoint, spelled)
            added = prompt_tokens(spelled) - base
            if difference:
                what = f"{literal} in a text changes the prompt: {difference}"
            elif difference is None and added <= _COPIES + _SLACK:
                if added == 0:
                    await _check_text_counts(case.request, base, target)
                what = f"{_COPIES} times {literal} in a text add {added} tokens: they are control tokens"
            else:
                continue
            findings.append(Finding(what, "prompt", spelled, decided=True))
        return Checked(tuple(findings))


async def _check_text_counts(request: Mapping[str, Any], base: int, target: Target) -> None:
    """Raises `NotTested` if a longer text without control tokens adds none to the prompt either."""
    if prompt_tokens(await target.answer(_with(request, _NEUTRAL * _COPIES))) == base:
        raise NotTested("its prompts do not have this text, whatever it says", blocking=False)


def _with(request: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The request with a text in its place, and the shortest answer."""
    quoted = json.dumps(text)[1:-1]
    return {**json.loads(json.dumps(request).replace(_PLACE, quoted)), "max_tokens": 1}
