"""`dovetail plan`: a page that reads well at 80 columns, JSON, and commands for other engines."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.checkpoints import hub
from dovetail.cli.main import main
from dovetail.cli.plan import headline
from dovetail.plan import embedded, hardware, resolve
from dovetail.plan.options import OPTIONS
from tests.checkpoints.configs import KIMI_EAGLE3_MLA, KIMI_K25, QWEN3_8B, QWEN3_8B_DFLASH, QWEN3_8B_EAGLE3, write
from tests.cli.conftest import Dovetail
from tests.formats.chat_templates import HERMES, PLAIN, QWEN3, SMALL_CONTROLS
from tests.formats.test_differencing import CONTROLS, LISTED, template
from tests.formats.test_registry import checkpoint


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `dovetail plan` at 80 columns, on a machine of 24 GB without GPUs, with a hub that has some models."""
    on_the_hub = {
        "moonshotai/Kimi-K2.5": KIMI_K25,
        "lightseekorg/kimi-k2.5-eagle3-mla": KIMI_EAGLE3_MLA,
        "Qwen/Qwen3-8B": QWEN3_8B,
        "Qwen/Qwen3-8B-Base": QWEN3_8B,
        "RedHatAI/Qwen3-8B-speculator.eagle3": QWEN3_8B_EAGLE3,
    }

    def fetch(name: str, revision: str | None = None) -> str:
        folder = Path(write(tmp_path / name, on_the_hub[name]))
        return str(checkpoint(folder, *SMALL_CONTROLS, template=QWEN3) if name == "Qwen/Qwen3-8B" else folder)

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(hardware, "detect", lambda: None)
    monkeypatch.setattr(embedded, "machine_memory", lambda: 24 * 10**9)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str | Path) -> str:
        code = main(["plan", *map(str, arguments)])
        out, error = capsys.readouterr()
        assert (code, error) == (0, "")
        return out

    return run


def rows(page: str) -> dict[str, list[str]]:
    """Setting -> the words of its row, value first."""
    table = page.partition("\n\n")[2].partition("\n\n")[0]
    return {line.split()[0]: line.split()[1:] for line in table.splitlines() if not line.startswith(" ")}


def test_the_page_names_every_value_with_its_source(plan: Any, pair: Path) -> None:
    page = plan(pair / "drafter", "--port", "9000")
    assert page.startswith("target on the embedded engine, eagle3 drafts up to 8 a step where it pays\n\nsetting ")
    table = rows(page)
    shown = json.loads(plan(pair / "drafter", "--port", "9000", "--json"))
    assert shown["target"] == {"value": str(pair / "target"), "from": "drafter"}
    assert shown["port"] == {"value": 9000, "from": "command line"}
    assert table["port"] == ["9000", "command", "line"]
    assert table["draft_tokens"] == ["2", "drafter"]
    assert table["gate"] == ["measured", "default"]
    values = {option.name for option in OPTIONS if shown[option.name]["value"] is not None}
    assert table.keys() == {"setting", "compute"} | values
    everything = rows(plan(pair / "drafter", "--all"))
    assert everything.keys() == {"setting", "compute"} | {option.name for option in OPTIONS}
    assert everything["tensor_parallel_size"] == ["none", "default"]


def test_a_none_from_the_command_line_is_shown(plan: Any, pair: Path) -> None:
    table = rows(plan(pair / "target", "--drafter", "none"))
    assert table["drafter"] == ["none", "command", "line"]
    assert "method" not in table


@pytest.mark.parametrize(
    ("options", "drafting"),
    [
        ({}, "eagle3 drafts up to 8 a step where it pays"),
        ({"gate": "off"}, "eagle3 drafts 2 a step"),
        ({"max_draft_tokens": 5}, "eagle3 drafts up to 5 a step where it pays"),
        ({"max_draft_tokens": 1}, "eagle3 drafts up to 1 a step where it pays"),
        ({"speculate_below_context": 700}, "eagle3 drafts up to 8 a step where it pays, below 700 tokens of context"),
        (
            {"speculate_below_context": 7000, "speculate_up_to_batch": 1, "gate": "off"},
            "eagle3 drafts 2 a step, below 7,000 tokens of context, for up to 1 sequence at once",
        ),
        ({"speculate_up_to_batch": 8, "draft_tokens": 0}, "nothing drafts"),
        ({"speculate_below_context": 700, "engine": "vllm"}, "eagle3 drafts 2 a step"),
    ],
    ids=str,
)
def test_the_headline_has_the_drafting_and_its_limits(pair: Path, options: dict[str, Any], drafting: str) -> None:
    runs = headline(resolve(str(pair / "drafter"), {"format": "kimi_k25"} | options))
    assert re.fullmatch(rf"target on (the embedded engine|vLLM), {drafting}", runs)


PAGES = {
    "recipe": ("moonshotai/Kimi-K2.5", "--gpus", "8x RTX PRO 6000"),
    "no recipe": ("moonshotai/Kimi-K2.5", "--gpus", "8x96GB"),
    "drafter alone": ("RedHatAI/Qwen3-8B-speculator.eagle3", "--tensor-parallel-size", "2", "--seed", "42"),
    "lookup": ("Qwen/Qwen3-8B", "--method", "ngram", "--gpus", "8x H100"),
    "demo": (),
    "long path": ("{long}/target",),
    "all": ("--all",),
}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_fits_80_columns(plan: Any, tmp_path: Path, page: str) -> None:
    long = tmp_path / ("a long path " * 8) / "[bold]markup[/bold]"
    write(long / "target", QWEN3_8B)
    shown = plan(*(argument.format(long=long) for argument in PAGES[page]))
    assert max(map(len, shown.splitlines())) <= 80
    if page == "long path":
        assert str(long / "target").replace(" ", "") in re.sub(r"\s", "", shown)


def test_the_page_has_settings_memory_notes_and_advice(plan: Any) -> None:
    page = plan(*PAGES["recipe"])
    head = "moonshotai/Kimi-K2.5 on vLLM, 8x RTX PRO 6000 (tensor 8, decode context 4), eagle3 drafts 3 a step"
    assert " ".join(page.partition("\n\n")[0].split()) == head
    assert rows(page)["decode_context_parallel_size"] == ["4", "recipe", "kimi-k2.5-sm120-dcp4"]
    text = " ".join(page.split())
    assert "environment value from VLLM_ENABLE_PCIE_ALLREDUCE 1 recipe kimi-k2.5-sm120-dcp4" in text
    assert "target 1.03T parameters, 31.7B active: mla, 8 of 384 experts, int4" in text
    assert "weights 595.1 GB, estimated from its shape; the drafter's 6.0 GB" in text
    assert re.search(r"KV cache [\d,]+ bytes a token on each GPU; [\d,]+ tokens fit, \d+ sequences of 262,144", text)
    assert "note speculate_below_context is 7000" in text
    assert "advice --decode-context-parallel-size 8: room for" in text


def test_a_config_cannot_control_the_terminal(plan: Any, pair: Path) -> None:
    page = plan(pair / "target", "--served-model-name", "\x1b]0;me\x07\x9b2J")
    assert "\x1b" not in page and "\x07" not in page and "\x9b" not in page


def test_commands_for_other_engines(plan: Any) -> None:
    words = ("RedHatAI/Qwen3-8B-speculator.eagle3", "--gpus", "H100", "--seed", "42")
    vllm = plan(*words, "--emit", "vllm")
    assert "vllm serve Qwen/Qwen3-8B \\\n" in vllm
    assert "  --max-model-len 40960 \\\n" in vllm and "  --seed 42 \\\n" in vllm
    assert '"model": "RedHatAI/Qwen3-8B-speculator.eagle3", "method": "eagle3", "num_speculative_tokens": 3' in vllm
    assert "# warning: the model's format is unknown" in plan("Qwen/Qwen3-8B-Base", "--emit", "vllm")
    assert "H100" not in vllm
    assert "python -m sglang.launch_server \\\n  --model-path Qwen/Qwen3-8B" in plan(*words, "--emit", "sglang")
    assert "trtllm-serve Qwen/Qwen3-8B" in plan(*words, "--emit", "trtllm")
    assert yaml.safe_load(plan(*words, "--emit", "helm"))["vllm"]["nodes"] == 1
    assert yaml.safe_load(plan("moonshotai/Kimi-K2.5", "--gpus", "16x H100", "--emit", "helm"))["vllm"]["nodes"] == 2


def test_the_bundled_pair_is_planned_on_vllm_for_its_command(plan: Any) -> None:
    command = plan("--emit", "vllm")
    assert re.search(r"^vllm serve \S+/demo/target ", command, re.MULTILINE)
    assert "--dtype" not in command


def test_a_drafter_that_the_other_engine_cannot_run_is_refused(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"speculators_model_type": "peagle", "mask_token_id": 9}
    drafter = write(tmp_path / "drafter", QWEN3_8B_EAGLE3 | changes)
    assert '"parallel_drafting": true' in plan("Qwen/Qwen3-8B", "--drafter", drafter, "--emit", "vllm")
    for words in ([], ["--engine", "vllm"]):
        assert main(["plan", "Qwen/Qwen3-8B", "--drafter", drafter, *words, "--emit", "sglang"]) == 2
        error = capsys.readouterr().err
        assert "SGLang 0.5.23 has no P-EAGLE; vLLM runs it" in error and "--drafter none" in error


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_the_help_shows_the_common_options_and_help_all_every_option(dovetail: Dovetail, command: str) -> None:
    common, everything = (dovetail(command, flag).stdout for flag in ("--help", "--help-all"))
    for option in OPTIONS:
        shown = [re.search(rf"^  {option.flags[0]}\b", text, re.MULTILINE) is not None for text in (common, everything)]
        in_help = option.common or (command, option.name) == ("plan", "gpus")
        assert shown == [option.command_line and in_help, option.command_line], option.name
    for text in (common, everything):
        assert text.splitlines()[0] == f"usage: dovetail {command} [MODEL] [--option VALUE …]"
        assert text.count(f"\n  dovetail {command}") == {"serve": 3, "plan": 2}[command], "examples"
        assert max(map(len, text.splitlines())) <= 80
    assert len(common.splitlines()) <= 75


def test_a_drafter_that_only_the_other_engine_can_run_is_planned_for_it(plan: Any, tmp_path: Path) -> None:
    drafter = write(tmp_path / "drafter", QWEN3_8B_DFLASH | {"architectures": ["DominoDraftModel"]})
    command = plan("Qwen/Qwen3-8B", "--drafter", drafter, "--emit", "sglang", "--gpus", "H100")
    assert f"--speculative-algorithm DFLASH \\\n  --speculative-draft-model-path {drafter} " in command
    assert main(["plan", "Qwen/Qwen3-8B", "--drafter", drafter, "--emit", "vllm"]) == 2


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of the error message."""
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error


def test_an_empty_config_is_refused(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--config is empty" in refused(capsys, "plan", pair / "target", "--config", "")


def test_an_error_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(tmp_path, QWEN3_8B)
    for words in (["x" * 50_000], [target, "--drafter", "x" * 50_000], [target, "--gpus", "9" * 50_000]):
        assert len(refused(capsys, "plan", *words)) < 2000
    (tmp_path / "config.yaml").write_text("x" * 500 + "é: 1\n" + "[" * 20)
    assert len(refused(capsys, "plan", tmp_path, "--config", tmp_path / "config.yaml")) < 2000


@pytest.mark.parametrize("text", ["[" * 200_000, "port: 2001-99-99", "port: !!int abc", f"port: {'9' * 5000}"], ids=len)
@pytest.mark.parametrize("as_", ["config", "recipe", "recipes"])
def test_yaml_that_would_crash_a_reader_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, as_: str
) -> None:
    file = tmp_path / "it.yaml"
    head = "" if as_ == "config" or text.startswith("[") else "name: a\nsource: b\nsettings:\n  "
    file.write_text(head + text)
    command = ("recipes", file) if as_ == "recipes" else ("plan", write(tmp_path, QWEN3_8B), f"--{as_}", file)
    assert re.search(r"it\.yaml|config file: port is ", refused(capsys, *command))


def test_a_drafters_target_with_a_nul_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = QWEN3_8B_EAGLE3["speculators_config"] | {"verifier": {"name_or_path": "~a\0b", "architectures": []}}
    drafter = write(tmp_path, QWEN3_8B_EAGLE3, speculators_config=block)
    assert "is a drafter whose config names no target" in refused(capsys, "plan", drafter)


@pytest.mark.parametrize(
    ("source", "level", "reads"),
    [
        (LISTED, "note", 'the layout of its calls was derived by differencing (\'<|calls|>[{"tool": "\')'),
        (
            template(""),
            "note",
            "it shows no tools: they, calls and results are text in a generic layout ('<tool_call>')",
        ),
        (
            template("{{- tools | tojson }}"),
            "warning",
            "tool calls are not read, because the chat template shows no calls: a history with a",
        ),
        (
            LISTED.replace("<|calls|>", "<|im_end|>"),
            "warning",
            "tool calls are not read, because no declaration expresses the layout of its calls: Derived.calls: "
            "'<|im_end|>' ends a turn",
        ),
    ],
    ids=["derived", "generic", "no calls", "contradictory"],
)
def test_the_plan_says_how_a_template_of_its_own_is_read(
    plan: Any, tmp_path: Path, source: str, level: str, reads: str
) -> None:
    folder = checkpoint(Path(write(tmp_path / "model", QWEN3_8B)), *CONTROLS, template=source)
    assert rows(plan(folder))["format"][:2] == ["jinja", "default"]
    why = f"the format is jinja: it has a chat_template.jinja of its own; {reads}"
    assert f"{level} {why}" in " ".join(plan(folder).split())
    (message,) = (
        each["message"] for each in json.loads(plan(folder, "--json"))[f"{level}s"] if each["setting"] == "format"
    )
    assert message.startswith(why)


def test_a_format_without_prompts_has_to_fit_the_chat_template(
    plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the server would refuse every request."""
    folder = checkpoint(Path(write(tmp_path / "model", QWEN3_8B)), *SMALL_CONTROLS, template=HERMES)
    assert rows(plan(folder, "--format", "hermes"))["format"] == ["hermes", "command", "line"]
    complaint = (
        "format is 'qwen3' (command line): qwen3 has no prompts of its own, they come from the model's chat template"
    )
    unlike = f"{complaint}, and {folder}'s template is not qwen3's"
    assert unlike in refused(capsys, "plan", folder, "--format", "qwen3")
    checkpoint(folder, template=PLAIN)
    assert "the chat template shows no calls" in refused(capsys, "serve", folder, "--format", "hermes")


@pytest.mark.parametrize("command", [("render", "-", "--model"), ("plan",), ("serve",), ("formats", "--of")])
@pytest.mark.parametrize("source", ["{{ [1] | slice(50000000) | list }}", "{{ ([1] * 5000000) | tojson }}"])
def test_a_template_without_end_is_refused_with_its_reason(
    dovetail: Dovetail, pair: Path, tmp_path: Path, command: tuple[str, ...], source: str
) -> None:
    folder = tmp_path / "evil"
    shutil.copytree(pair / "target", folder)
    (folder / "chat_template.jinja").write_text(source)
    done = dovetail(*command, folder, input='{"messages": [{"role": "user", "content": "hi"}]}')
    assert done.returncode == 2
    assert done.stderr.startswith("dovetail: the model cannot answer even `hi`: the chat template loops"), done.stderr


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--demo", "gpt"), "there is no demo model gpt, only smollm2"),
        (("a/b", "--demo", "smollm2"), "--demo smollm2 is a model, and so is a/b: leave one of them out"),
    ],
)
def test_a_demo_model_is_one_that_there_is(
    words: tuple[str, ...], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (main(["plan", *words]), capsys.readouterr().err) == (2, f"dovetail: {refusal}\n")
