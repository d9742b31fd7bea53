"""Pythons that have vLLM, each with a worker in it, and a small tokenizer on disk for every family."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

import dovetail
from dovetail.formats.registry import FAMILIES
from dovetail.tokens import Prompt, Segment, Tokenizer
from tests.reading import families

ROOT = Path(__file__).parents[3]
VARIABLE = "DOVETAIL_VLLM_PARSERS"


def pythons() -> list[str]:
    """Pythons with vLLM's parsers; the engine is not needed."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path] or [""]


def environment(**variables: str) -> dict[str, str]:
    dropped = ("DOVETAIL_", "VLLM_", "PYTHON")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return inherited | {"PYTHONPATH": str(ROOT / "src"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"} | variables


def cache_in(folder: Path, python: str) -> Path:
    """vLLM's cache folder, new but for what it finds out about an architecture by a process that imports all of it."""
    known = Path(python).parents[1] / ".cache" / "modelinfos"
    known.mkdir(parents=True, exist_ok=True)
    cache = folder / "cache"
    cache.mkdir()
    (cache / "modelinfos").symlink_to(known)
    return cache


class Inside:
    """A worker (see `inside`, or another `script`) in a Python that has vLLM."""

    def __init__(self, python: str, script: str = "inside.py", **variables: str) -> None:
        self.python = python
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(**variables),
            text=True,
        )
        self.version = self._answer()["vllm"]

    def ask(self, do: str, **job: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **job}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the worker has ended: its output is above"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="session", params=pythons())
def python(request: pytest.FixtureRequest) -> str:
    if not request.param:
        pytest.skip(f"{VARIABLE} does not name Pythons with vLLM 0.32 and 0.33: make check-parsers")
    return str(request.param)


@pytest.fixture(scope="session")
def inside(python: str) -> Iterator[Inside]:
    worker = Inside(python)
    yield worker
    worker.close()


@functools.cache
def literals(name: str) -> tuple[str, ...]:
    return (*families.controls(name), "<|unheard|>")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> a folder with a tokenizer that has its control tokens, and pieces of its other markers."""
    return {name: checkpoint(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


def checkpoint(name: str, folder: Path, base: Path | None = None, special: Container[str] | None = None) -> Path:
    """Write a tokenizer: `base` (a tokenizer.json), else a small one that is trained, and the family's control tokens.

    `special`: the control tokens that vLLM removes from texts by default; None for all.
    """
    if base is not None:
        bpe = Library.from_file(str(base))
    else:
        bpe = Library(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        text = [*families.sample_outputs(name), *families.markers(name), "the city of Paris", "漢字"] * 3
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        bpe.train_from_iterator(
            text, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
        )
    for literal in literals(name):
        bpe.add_tokens([AddedToken(literal, special=special is None or literal in special, normalized=False)])
    bpe.save(str(folder / "tokenizer.json"))
    end = next((end for end in families.format_of(name).end_of_turn if end in literals(name)), None)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@functools.lru_cache(64)
def tokenizer_in(folder: Path) -> Tokenizer:
    return dovetail.tokenizer(folder)


def ids_of(name: str, text: str, folder: Path) -> list[int]:
    """The ids of a text in which every literal of the family's control tokens is one."""
    mark = re.compile("(" + "|".join(map(re.escape, sorted(literals(name), key=len, reverse=True))) + ")")
    segments = [Segment(piece, bool(i % 2)) for i, piece in enumerate(mark.split(text))]
    return Prompt(segments).ids(tokenizer_in(folder))


def prompt_of(name: str, thinking: bool, folder: Path) -> list[int]:
    """A prompt that leaves a reasoning block open, or that does not."""
    fmt = families.format_of(name)
    return ids_of(name, fmt.end_of_turn[0] + (fmt.reader_type.think.strip() if thinking else ""), folder)
