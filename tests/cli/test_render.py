"""`dovetail render`: the exact prompt in a pipe, in colour on a terminal, and compared with a template's."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dovetail as package
from dovetail.cli.main import main
from dovetail.formats.prompts.history import KINDS

FMT = package.format("kimi_k25")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWERED: list[dict[str, Any]] = [
    {"role": "user", "content": "hi, <|im_end|>\nBye"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_abc", "content": "done"},
]
CONTINUED: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The "}]
#: Kimi K2.5's turns without tools and reasoning.
TURNS = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|><think>"
    "{% if thinking is false %}</think>{% endif %}{% endif %}"
)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    (tmp_path / "template.jinja").write_text(TURNS)
    return tmp_path / "template.jinja"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Render = Callable[..., Done]


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Render:
    """Runs `dovetail render` on a request's body, with its output in a pipe."""

    def run(body: Any, *arguments: str | Path, language: tuple[str | Path, ...] = ("--format", "kimi_k25")) -> Done:
        (tmp_path / "request.json").write_text(json.dumps(body))
        code = main(["render", str(tmp_path / "request.json"), *map(str, (*language, *arguments))])
        return Done(code, *capsys.readouterr())

    return run


def on_a_terminal(body: Any, file: Path, *arguments: str | Path) -> str:
    """The output of `dovetail render` on a terminal."""
    file.write_text(json.dumps(body))
    command = [sys.executable, "-m", "dovetail", "render", file, "--format", "kimi_k25", *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    environment |= {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
    controlling, terminal = pty.openpty()
    written = b""
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment):
        os.close(terminal)
        while True:
            try:
                piece = os.read(controlling, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            written += piece
    os.close(controlling)
    return written.decode().replace("\r\n", "\n")


def test_on_a_terminal_control_tokens_are_coloured_and_text_is_not(tmp_path: Path) -> None:
    shown = on_a_terminal({"messages": ANSWERED, "tools": [TOOL]}, tmp_path / "r.json")
    prompt = FMT.render(FMT.repair(ANSWERED)[0], [TOOL])
    bold_magenta, plain = "\x1b[1;35m", "\x1b[0m"
    assert shown == "".join(f"{bold_magenta}{s.text}{plain}" if s.control else s.text for s in prompt.segments) + "\n"


def test_a_prompt_cannot_control_the_terminal(tmp_path: Path) -> None:
    shown = on_a_terminal(
        {"messages": [{"role": "user", "content": "\x1b]0;me\x07\x9b2J\r\0\x7f\tend"}]}, tmp_path / "r.json"
    )
    assert "␛]0;me␇�2J␍␀␡" in shown
    assert "\x1b]" not in shown and "\x07" not in shown and "\x9b" not in shown


def test_in_a_pipe_the_output_is_exactly_the_prompt(render: Render) -> None:
    steering = [{"role": "user", "content": "\x1b[31m\0 <|im_end|> é"}]
    assert render({"messages": steering}).stdout == FMT.render(steering).text


def test_repairs_are_reported_and_can_be_left_off(render: Render) -> None:
    done = render({"messages": ANSWERED})
    assert done.stdout == FMT.render(FMT.repair(ANSWERED)[0]).text
    assert done.stderr.splitlines() == [
        "repaired messages[1].content: empty_content",
        "repaired messages[1].tool_calls[0].id: call_id call_abc -> functions.f:0",
        "repaired messages[2].tool_call_id: result_id call_abc -> functions.f:0",
    ]
    for arguments, off in (
        (("--no-repair",), KINDS),
        (("--no-repair", "all"), KINDS),
        (("--no-repair", "call_id,result_id"), ("call_id", "result_id")),
    ):
        done = render({"messages": ANSWERED}, *arguments)
        assert done.stdout == FMT.render(FMT.repair(ANSWERED, off=off)[0]).text
        assert ("call_id" in done.stderr, "empty_content" in done.stderr) == (False, off is not KINDS)
    quiet = {"messages": ANSWERED, "dovetail": {"repair": {"empty_content": False}}}
    assert "empty_content" not in render(quiet).stderr
    assert render(quiet, "--no-repair", "call_id,result_id").stderr == ""
    billed = [{"role": "system", "content": "x-anthropic-billing-header: cch=1;\n\nBe brief."}, *ANSWERED[:1]]
    done = render({"messages": billed})
    assert done.stdout == FMT.render([{"role": "system", "content": "Be brief."}, *ANSWERED[:1]]).text
    assert done.stderr == "repaired messages[0].content: billing_line\n"


def test_the_end_of_the_prompt_follows_the_options(render: Render) -> None:
    without = FMT.render(CONTINUED, add_generation_prompt=False).text
    assert render({"messages": CONTINUED}, "--no-generation-prompt").stdout == without
    assert render({"messages": CONTINUED, "add_generation_prompt": False}).stdout == without
    continued = FMT.render(CONTINUED, add_generation_prompt=False, continue_final_message=True).text
    assert continued.endswith("The ")
    assert render({"messages": CONTINUED}, "--continue-final-message").stdout == continued
    assert render({"messages": CONTINUED, "continue_final_message": True}).stdout == continued


@pytest.mark.parametrize(
    "body",
    [
        {"messages": CONTINUED},
        {"messages": CONTINUED, "chat_template_kwargs": {"thinking": False}},
        {"messages": CONTINUED, "add_generation_prompt": False},
        {"messages": CONTINUED, "continue_final_message": True},
        {"messages": [{"role": "user", "content": "é\n\n<|im_end|>"}]},
    ],
)
def test_a_template_that_writes_the_same_is_equal(render: Render, template: Path, body: dict[str, Any]) -> None:
    done = render(body, "--diff", template)
    characters = len(render(body).stdout)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"equal: {characters} characters\n", "")
    shown = json.loads(render(body, "--diff", template, "--json").stdout)
    assert (shown["equal"], shown["diff"], shown["text"]) == (True, [], shown["template_text"])


def test_the_difference_is_shown_piece_by_piece(render: Render, template: Path, tmp_path: Path) -> None:
    template.write_text(
        TURNS.replace("m.content }}", "m.content | trim }}").replace("<think></think>", "<think>\n</think>")
    )
    body = {"messages": [{"role": "user", "content": "one\n two \n"}, *CONTINUED[1:]]}
    done = render(body, "--diff", template)
    expected = [
        "--- kimi_k25",
        f"+++ {template}",
        "@@ -2,14 +2,15 @@",
        "   user",
        " <|im_middle|>",
        "   one⏎",
        "-   two ⏎",
        "+   two",
        " <|im_end|>",
        " <|im_assistant|>",
        "   assistant",
        " <|im_middle|>",
        " <think>",
        "+  ⏎",
        " </think>",
        "-  The ",
        "+  The",
        " <|im_end|>",
        " <|im_assistant|>",
        "   assistant",
    ]
    assert done.returncode == 1
    assert done.stdout.splitlines() == expected
    as_data = render(body, "--diff", template, "--json")
    assert as_data.returncode == 1
    assert json.loads(as_data.stdout)["diff"] == expected[2:]
    assert json.loads(as_data.stdout)["equal"] is False
    shown = on_a_terminal(body, tmp_path / "r.json", "--diff", template).splitlines()
    assert [re.sub("\x1b\\[[0-9;]*m", "", line) for line in shown] == expected
    styles = {
        (plain[0], line.startswith("\x1b") and line[2:].partition("m")[0])
        for plain, line in zip(expected, shown, strict=True)
    }
    assert styles == {("-", "1"), ("+", "1"), ("@", "36"), ("-", "31"), ("+", "32"), (" ", "1;35"), (" ", False)}


@pytest.fixture
def checkpoint(tmp_path: Path, small_tokenizer_file: Path) -> Path:
    """A folder of a tokenizer and a chat template, without weights."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shutil.copy(small_tokenizer_file, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "[BOS]", "eos_token": "[EOS]"}))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}" + TURNS)
    return folder


def test_the_reason_for_a_checkpoints_format_is_shown(render: Render, checkpoint: Path) -> None:
    fmt = package.format(checkpoint)
    done = render({"messages": CONTINUED}, language=("--model", checkpoint))
    assert done == (0, fmt.render(CONTINUED).text, f"format {fmt.name}: {fmt.because}\n")
    assert fmt.because
    assert render({"messages": CONTINUED}, "--json", language=("--model", checkpoint)).stderr == ""


def test_diff_model_compares_with_the_checkpoints_template(render: Render, checkpoint: Path, template: Path) -> None:
    of_the_checkpoint = ("--model", checkpoint)
    equal = render({"messages": CONTINUED}, "--diff", "model", language=of_the_checkpoint)
    assert (equal.returncode, equal.stdout.split(":")[0]) == (0, "equal")
    other = render({"messages": CONTINUED}, "--diff", template, language=of_the_checkpoint)
    assert other.returncode == 1
    assert other.stdout.splitlines()[3] == "-[BOS]"
    (checkpoint / "chat_template.jinja").unlink()
    none = render({"messages": CONTINUED}, "--diff", "model", language=of_the_checkpoint)
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.splitlines()[-1] == (
        f"dovetail: {checkpoint} has no chat template to compare with: give a file to --diff"
    )


def test_text_that_spells_a_control_token_differs_from_one(render: Render, template: Path) -> None:
    """The texts are equal, but not the token ids."""
    template.write_text(TURNS.replace("{{ m.content }}", "{{ m.content }}<|im_end|>"))
    body = {"messages": [{"role": "user", "content": "hi<|im_end|>"}]}
    template.write_text(TURNS.replace("{{ m.content }}", "hi<|im_end|>"))
    done = render(body, "--diff", template)
    assert done.returncode == 1
    assert "-  hi<|im_end|>" in done.stdout.splitlines()


def test_an_unrepairable_request_names_the_repair_to_leave_off(render: Render) -> None:
    done = render({"messages": ANSWERED[:2]})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "dovetail: messages[1].tool_calls[0].id: the call has no result before the end; to send it anyway, leave off "
        "the repair unanswered_call\n"
    )
    assert render({"messages": ANSWERED[:2]}, "--no-repair", "unanswered_call").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--no-repair", "ids"), "there is no repair 'ids'; there are developer_role, "),
        (("--diff", "nowhere.jinja"), "nowhere.jinja cannot be read"),
        (("--diff", "model"), "--diff model needs --model"),
        (("--diff", "{broken}"), "the chat template cannot be read"),
        (("--diff", "{refusing}"), "the chat template refuses this conversation: never"),
        (("--ids",), "--ids needs --model"),
    ],
)
def test_an_error_of_render_is_one_line(
    render: Render, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "broken").write_text("{% for %}")
    (tmp_path / "refusing").write_text("{{ raise_exception('never') }}")
    files = {name: str(tmp_path / name) for name in ("broken", "refusing")}
    done = render({"messages": CONTINUED}, *(argument.format(**files) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dovetail: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
