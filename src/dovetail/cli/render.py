"""`dovetail render`: the prompt that the gateway would make of a chat completions request.

With `--diff`: how it differs from the prompt that a chat template writes for the same request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.checkpoints.tokenizer_files import TokenizerFiles
from dovetail.cli.files import read_json, read_text
from dovetail.cli.terminal import CONTROL, prompt_text, visible
from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format, Messages
from dovetail.formats.derived.template import Template, pattern
from dovetail.formats.prompts import continuing
from dovetail.formats.prompts.history import listed_kinds
from dovetail.gateway.apis.chat_request import decode, turn_request
from dovetail.gateway.turn.prompt import render_prompt, without_billing_lines
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Prompt, Segment

DIFFERENT = 1  # the exit code, as in `diff`

#: The names under which templates have the option that turns reasoning on.
_THINKING_OPTIONS = ("thinking", "enable_thinking", "reasoning")

_STYLES = {"-": "red", "+": "green", " ": "", "@": "cyan"}


def run(arguments: argparse.Namespace) -> int:
    if arguments.model is None and (arguments.ids or arguments.diff == "model"):
        option = "--ids" if arguments.ids else "--diff model"
        raise InvalidRequest(f"{option} needs --model: a format's name alone gives no tokenizer and no template")
    fmt = dovetail.format(arguments.model or arguments.format)
    request = _request(arguments)
    off = request.extension.repairs_off(()) | listed_kinds(arguments.no_repair)
    request = without_billing_lines(request, off)
    messages, repairs = fmt.repair(request.messages, request.tools, off=off)
    repairs += request.remedies
    prompt = render_prompt(request, fmt, messages)
    tokenizer = dovetail.tokenizer(arguments.model) if arguments.model else None
    if not arguments.json:
        if fmt.because:
            print(f"format {fmt.name}: {fmt.because}", file=sys.stderr)
        for repair in repairs:
            print(f"repaired {repair.where}: {repair.kind} {repair.detail}".rstrip(), file=sys.stderr)
    if arguments.diff is not None:
        template = _template(arguments.diff, arguments.model, tools=bool(request.tools))
        controls = tokenizer.control if tokenizer else prompt.pieces[1::2]
        other = _by_template(template, request, fmt, messages, controls)
        return _show_difference(prompt, other, (fmt.name, arguments.diff), as_json=arguments.json)
    ids = prompt.ids(tokenizer) if tokenizer else None
    if arguments.json:
        segments = [segment._asdict() for segment in prompt.segments]
        shown: dict[str, Any] = {"text": prompt.text, "segments": segments, "repairs": repairs}
        print(msgspec.json.encode(shown | ({} if ids is None else {"ids": ids})).decode())
    elif arguments.ids:
        print(ids)
    elif sys.stdout.isatty():
        Console(highlight=False).print(prompt_text(prompt), soft_wrap=True)
    else:
        sys.stdout.write(prompt.text)  # without a line break at the end
    return 0


def _request(arguments: argparse.Namespace) -> TurnRequest:
    body = read_json(arguments.request)
    if not isinstance(body, dict):
        raise InvalidRequest(f"{arguments.request} must hold a JSON object with `messages`")
    if arguments.no_generation_prompt:
        body["add_generation_prompt"] = False
    if arguments.continue_final_message:
        body["continue_final_message"] = True
    # The prompt does not depend on the name of the model, so the request may leave it out.
    return turn_request(decode(json.dumps({"model": "", **body}).encode()))


class _Line(NamedTuple):
    """A line of a unified diff. `sign`: - for the format's prompt only, + for the template's only, a space for both."""

    sign: str
    text: str
    control: bool = False

    def __str__(self) -> str:
        # Control tokens are not indented, so that they stand out without colour.
        return self.sign + ("" if self.control or self.sign == "@" else "  ") + visible(self.text).replace("\n", "⏎")


def _template(source: str, model: str | None, *, tools: bool) -> Template:
    """The chat template to compare with. `source`: a file, or "model" for the own template of the checkpoint `model`.

    `tools`: whether the request has any, for which a checkpoint may have another template.
    """
    checkpoint = TokenizerFiles(Path(model)) if model else None
    special = checkpoint.special if checkpoint else {}
    if checkpoint is None or source != "model":
        return Template(read_text(source), special)
    if not checkpoint.templates:
        raise InvalidRequest(f"{model} has no chat template to compare with: give a file to --diff")
    return Template(checkpoint.template_for(tools=tools).source, special)


def _by_template(
    template: Template, request: TurnRequest, fmt: Format, messages: Messages, controls: Iterable[str]
) -> Prompt:
    """The prompt of `request` by `template` and not by `fmt`. `controls`: the tokenizer's control tokens."""
    options = {**fmt.template_variables(request.tools), **dict.fromkeys(_THINKING_OPTIONS, request.thinking)}
    options |= request.template_options(template.options)
    options = {name: value for name, value in options.items() if name in template.options}
    mark = rest = ""
    if request.continue_final_message:
        messages, mark, rest = continuing.marked(messages, fmt.history_rules.reasoning_field)
    prompt = template.render(
        messages,
        request.tools,
        controls=pattern(controls),
        add_generation_prompt=request.add_generation_prompt,
        options=options,
    )
    return continuing.cut(prompt, mark, rest) if mark else prompt


def _show_difference(prompt: Prompt, other: Prompt, names: tuple[str, str], *, as_json: bool) -> int:
    """Print the difference of two prompts, whose names are `names`. Returns the exit code."""
    lines = [] if prompt == other else list(_unified(prompt, other))
    if as_json:
        shown = {
            "equal": prompt == other,
            "text": prompt.text,
            "template_text": other.text,
            "diff": list(map(str, lines)),
        }
        print(msgspec.json.encode(shown).decode())
    elif not lines:
        print(f"equal: {len(prompt.text):,} characters")
    else:
        console = Console(highlight=False, soft_wrap=True)
        for sign, name in zip("-+", names, strict=True):
            console.print(Text(f"{sign * 3} {name}", "bold"))
        for line in lines:
            console.print(Text(str(line), CONTROL if line.control and line.sign == " " else _STYLES[line.sign]))
    return DIFFERENT if lines else 0


def _unified(prompt: Prompt, other: Prompt) -> Iterator[_Line]:
    ours, theirs = _lines(prompt), _lines(other)
    for group in SequenceMatcher(None, ours, theirs).get_grouped_opcodes():
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield _Line("@", f"@ -{i + 1},{i_end - i} +{j + 1},{j_end - j} @@")
        for _, i, i_end, j, j_end in group:
            if ours[i:i_end] == theirs[j:j_end]:
                yield from (_Line(" ", *line) for line in ours[i:i_end])
            else:
                yield from (_Line("-", *line) for line in ours[i:i_end])
                yield from (_Line("+", *line) for line in theirs[j:j_end])


def _lines(prompt: Prompt) -> list[Segment]:
    """A segment for each control token, and for each line of the text between control tokens."""
    return [
        Segment(line, control)
        for text, control in prompt.segments
        for line in ([text] if control else text.splitlines(keepends=True))
    ]
