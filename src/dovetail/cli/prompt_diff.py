"""`dovetail render --diff`: how a prompt differs from the one that a chat template writes for the same request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from dovetail.checkpoints.tokenizer_files import TokenizerFiles
from dovetail.cli.files import read_text
from dovetail.cli.terminal import CONTROL, visible
from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format, Messages
from dovetail.formats.derived.template import Template, pattern
from dovetail.formats.prompts import continuing
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Prompt, Segment

DIFFERENT = 1  # the exit code, as in `diff`

#: The names under which templates have the option that turns reasoning on.
_THINKING_OPTIONS = ("thinking", "enable_thinking", "reasoning")

_STYLES = {"-": "red", "+": "green", " ": "", "@": "cyan"}


class Line(NamedTuple):
    """A line of a unified diff. `sign`: - for the format's prompt only, + for the template's only, a space for both."""

    sign: str
    text: str
    control: bool = False

    def __str__(self) -> str:
        # Control tokens are not indented, so that they stand out without colour.
        return self.sign + ("" if self.control or self.sign == "@" else "  ") + visible(self.text).replace("\n", "⏎")


def template(source: str, model: str | None, *, tools: bool) -> Template:
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


def by_template(
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


def show(prompt: Prompt, other: Prompt, names: tuple[str, str], *, as_json: bool) -> int:
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


def _unified(prompt: Prompt, other: Prompt) -> Iterator[Line]:
    ours, theirs = _lines(prompt), _lines(other)
    for group in SequenceMatcher(None, ours, theirs).get_grouped_opcodes():
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield Line("@", f"@ -{i + 1},{i_end - i} +{j + 1},{j_end - j} @@")
        for _, i, i_end, j, j_end in group:
            if ours[i:i_end] == theirs[j:j_end]:
                yield from (Line(" ", *line) for line in ours[i:i_end])
            else:
                yield from (Line("-", *line) for line in ours[i:i_end])
                yield from (Line("+", *line) for line in theirs[j:j_end])


def _lines(prompt: Prompt) -> list[Segment]:
    """A segment for each control token, and for each line of the text between control tokens."""
    return [
        Segment(line, control)
        for text, control in prompt.segments
        for line in ([text] if control else text.splitlines(keepends=True))
    ]
