"""`dovetail formats --of CHECKPOINT --check` and `--write response_template`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.cli.transformers_parser import TransformersParser
from dovetail.formats.response_templates.roundtrip import Unparsed
from tests.formats.chat_templates import HERMES, SMALL_CONTROLS
from tests.formats.response_templates import QWEN, spec
from tests.formats.test_response_template_writing import KEYED


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    """Makes a checkpoint's folder with a response template."""

    def make(response_template: Any, source: str = HERMES) -> str:
        tokens = [{"id": i, "content": literal} for i, literal in enumerate(SMALL_CONTROLS)]
        (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
        (tmp_path / "chat_template.jinja").write_text(source)
        config = {"eos_token": "<|im_end|>", "response_template": response_template}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return make


def _exploding() -> Any:
    calls = {**QWEN["fields"]["tool_calls"], "open_pattern": r"(\s*)+<tool_call>"}
    return spec(**QWEN["fields"] | {"tool_calls": calls})


def test_catastrophic_patterns_are_refused_and_not_run(checkpoint: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--of", checkpoint(_exploding()), "--check", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["reason"].startswith("open_pattern may take exponential time")
    assert (shown["equal"], shown["read_by"]) == (False, "hermes")
    assert main(["formats", "--of", checkpoint(_exploding()), "--check"]) == 1
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["hermes", "--check"], "need --of CHECKPOINT"),
        (["--of", "@", "--check"], "a response_template to check"),
    ],
)
def test_nothing_to_check(
    arguments: list[str], reason: str, checkpoint: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(None)
    assert main(["formats", *(each.replace("@", folder) for each in arguments)]) not in (0, None)
    assert reason in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_written(checkpoint: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--of", checkpoint(None, KEYED), "--write", "response_template"]) not in (0, None)
    assert "a call's name is the key of its object" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_by_transformers(checkpoint: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")
    assert main(["formats", "--of", checkpoint(QWEN), "--check", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["answers"], shown["differing"], shown["equal"]) == (24, 0, True)
    broken = {**QWEN["fields"]["tool_calls"], "transform": {"type": "function", "function": {"name": "{content.tool}"}}}
    for arguments in ([], ["--json"]):
        assert (
            main(
                ["formats", "--of", checkpoint(spec(**QWEN["fields"] | {"tool_calls": broken})), "--check", *arguments]
            )
            == 1
        )
        assert "missing key 'tool'" in " ".join(capsys.readouterr().out.split())
    assert main(["formats", "--of", checkpoint({"fields": 3}), "--check"]) == 1
    assert main(["formats", "--of", checkpoint(None), "--write", "response_template"]) == 0
    printed = capsys.readouterr()
    written = json.loads(printed.out[printed.out.index("{") :])
    assert "all read back" in printed.err
    assert main(["formats", "--of", checkpoint(written), "--check"]) == 0


@pytest.mark.slow
def test_a_pattern_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers.utils.chat_parsing", reason="needs transformers 5.13 or later")
    monkeypatch.setattr("dovetail.cli.transformers_parser._ANSWER", 1.0)
    with TransformersParser() as parse:
        for _ in range(2):
            with pytest.raises(Unparsed, match="more than 1 s"):
                parse(spec(content={"close_pattern": "(a|aa)+$"}) | {"start_anchor": "x"}, "a" * 60 + "b", "x")
