"""Law 8 beside transformers: there, text that spells control tokens becomes such tokens, and here it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from benchmarks.rendering import injection
from dovetail.formats.derived.template import pattern

pytestmark = [pytest.mark.proof, pytest.mark.slow]


@pytest.mark.parametrize("model", injection.MODELS, ids=lambda model: model.title)
def test_transformers_makes_control_tokens_of_a_users_text(
    shared_data: Path, tmp_path: Path, model: injection.Model
) -> None:
    pytest.importorskip("transformers")
    folder = injection.model_folder(model, shared_data, tmp_path / "model")
    tokenizer = dovetail.tokenizer(folder)
    texts = (model.user, model.result)
    conversations = [
        injection.messages(),
        *map(injection.messages, texts),
        *(injection.messages(result=t) for t in texts),
    ]
    spelled = [len(pattern(tokenizer.control).findall(text)) for text in texts] * 2
    assert min(spelled) > 0

    ours = injection.dovetail_ids(model, folder, conversations)
    theirs = injection.transformers_ids(model, folder, conversations)
    assert injection.added(tokenizer, ours) == [0, 0, 0, 0]
    assert injection.added(tokenizer, theirs) == spelled
    assert ours[0] == theirs[0] and list(map(tokenizer.decode, ours)) == list(map(tokenizer.decode, theirs))
