"""`dovetail formats`: the list of formats, and how the calls of a template or a checkpoint are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.formats.registry import FAMILIES
from tests.formats.test_differencing import LISTED, template


@pytest.fixture
def described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> object:
    """Runs `dovetail formats --of` on a template, and returns what it printed."""

    def run(source: str, *arguments: str) -> str:
        (tmp_path / "template.jinja").write_text(source)
        assert main(["formats", "--of", str(tmp_path / "template.jinja"), *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_the_list_has_a_line_for_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FAMILIES)
    assert all("get_weather" in line for line in lines)
    assert main(["formats", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(FAMILIES)


def test_a_template_whose_calls_were_derived(described) -> None:  # type: ignore[no-untyped-def]
    shown = json.loads(described(LISTED, "--json"))
    assert (shown["format"], shown["family"], shown["proved"], shown["reason"]) == ("jinja", "derived", True, "")
    assert shown["calls"]["section"] == "<|calls|>[{calls}]<|/calls|>"
    assert shown["calls"]["call"] == '{"tool": "{name}", "input": {arguments}}'
    assert shown["evidence"][0] == {
        "answer": "a call",
        "text": '<|calls|>[{"tool": "{name}", "input": {arguments}}]<|/calls|>',
    }
    text = described(LISTED)
    assert "proved" in text and "two calls" in text and '{"tool": "{name}", "input": {arguments}}' in text


def test_a_template_without_calls(described) -> None:  # type: ignore[no-untyped-def]
    source = "{{ tools | tojson }}" + template("")
    shown = json.loads(described(source, "--json"))
    assert (shown["family"], shown["reads_calls"]) == ("plain", False)
    assert shown["reason"].startswith("the chat template shows no calls")
    assert "calls" not in shown
    assert "the chat template shows no calls" in described(source).replace("\n", " ")


def test_a_template_without_tools(described) -> None:  # type: ignore[no-untyped-def]
    shown = json.loads(described(template(""), "--json"))
    assert (shown["family"], shown["reads_calls"], shown["proved"]) == ("generic", True, True)
    assert shown["calls"]["section"] == "<tool_call>\n{call}\n</tool_call>"
    text = " ".join(described(template("")).split())
    assert "tools text in a generic layout, because the template shows none" in text


def test_a_template_that_a_native_family_reads(described, shared_data: Path) -> None:  # type: ignore[no-untyped-def]
    source = (shared_data / "templates/llama.cpp/moonshotai-Kimi-K2.jinja").read_text(encoding="utf-8")
    shown = json.loads(described(source, "--json"))
    assert (shown["family"], shown["proved"]) == ("kimi_k2", True)


def test_a_native_format_needs_no_proof(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--of", "kimi_k25", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["format"], shown["family"]) == ("kimi_k25", "kimi_k25")
    assert "get_weather" in shown["call"]
    assert main(["formats", "--of", "kimi_k25"]) == 0


def test_a_published_model_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "zai-org/GLM-5.1-FP8"]) == 0
    shown = capsys.readouterr().out
    assert "glm47" in shown and "GLM-5* is published with it" in shown
    assert main(["formats", "GLM", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["glm45", "glm47"]
    assert main(["formats", "GLM"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("glm47  GLM-4.7*, GLM-5*")
    assert main(["formats", "glm47", "--json"]) == 0
    assert "GLM-5*" in json.loads(capsys.readouterr().out)["models"]


def test_a_published_model_whose_format_is_derived(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "tencent/Hy3-preview"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "derived from the chat template of Hy3*" in shown and "--of FOLDER" in shown
    assert main(["formats", "SmolLM2-135M-Instruct"]) == 0
    assert "generic layout" in (shown := capsys.readouterr().out) and "SmolLM2* shows no tools" in shown
    assert main(["formats", "GigaChat"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["gigachat3", "gigachat35", "derived"]


def test_an_unknown_model_is_an_error_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "deepsek-v4"]) == 2
    error = capsys.readouterr().err
    assert "near are DeepSeek-V4" in error and "--of FOLDER" in error
