"""Fixtures of many tests: data of other projects (if it is beside the checkout) and a small tokenizer."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import dovetail
from dovetail.tokens import Tokenizer as DovetailTokenizer
from tests.reading import families

# Tests run beside each other, so one of their engines computes with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
SHARED = Path(__file__).parents[2] / "shared" / "data"
KIMI_CONTROL = (
    "[BOS]",
    "[EOS]",
    "[PAD]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_pad|>",
    "<|media_end|>",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what some runs leave out.

    Slow tests are not traced for coverage, which would double their time. Siblings are the cases of a family whose
    reader another family has, too, in tests that try all families. A test that names a few families tries what is
    special about each of them.
    """
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker("untraced")
    tried: dict[tuple[Path, str], dict[str, list[pytest.Item]]] = {}
    for item in items:
        cases = getattr(item, "callspec", None)
        name = cases.params.get("name") if cases is not None else None
        if name in families.NAMES:
            test = item.path, item.nodeid.partition("[")[0]
            tried.setdefault(test, {}).setdefault(name, []).append(item)
    for by_family in tried.values():
        if len(by_family) > len(families.NAMES) // 2:
            for item in (item for name in by_family.keys() - families.leading() for item in by_family[name]):
                item.add_marker("sibling")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Take coverage's tracer away from untraced tests. pytest-cov's `no_cover` does not, in processes of xdist."""
    if item.get_closest_marker("untraced") is None:
        return (yield)
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The fixtures that are other people's; the project ships none of them."""
    if not SHARED.is_dir():
        pytest.skip("the shared fixtures (../shared/data) are not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def published_tokenizer(shared_data: Path) -> Callable[[str], DovetailTokenizer]:
    """A published tokenizer by its name in the shared fixtures. Each is loaded once, which takes up to two seconds."""
    return functools.cache(lambda name: dovetail.tokenizer(shared_data / "tokenizers" / name))


@pytest.fixture(scope="session")
def kimi_tokenizer(published_tokenizer: Callable[[str], DovetailTokenizer]) -> DovetailTokenizer:
    return published_tokenizer("kimi_k25")


@pytest.fixture(scope="session")
def small_tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of a few hundred tokens with Kimi's control tokens, as a tokenizer.json."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    text = ['functions.get_weather:0 {"city": "Paris", "days": 3} tool_call_begin think section the user asks'] * 4
    bpe.train_from_iterator(
        text,
        trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    bpe.add_tokens([AddedToken(literal, special=False, normalized=False) for literal in KIMI_CONTROL])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.save(str(path))
    return path


@pytest.fixture(scope="session")
def small_tokenizer(small_tokenizer_file: Path) -> DovetailTokenizer:
    return dovetail.tokenizer(small_tokenizer_file)
