"""Writes docs/templates.md: how the calls of each published chat template are read.

python -m tests.formats.template_list SHARED_DATA > docs/templates.md
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.errors import DovetailError
from dovetail.formats.derived.differencing import NAME as DERIVED
from dovetail.formats.derived.generic import NAME as GENERIC
from dovetail.formats.derived.jinja import JinjaFormat
from dovetail.formats.derived.proof import TOOLS
from dovetail.formats.response_templates.roundtrip import Result, Unparsed, roundtrip
from dovetail.formats.response_templates.writing import Inexpressible, written
from tests.formats import chat_templates

_HEAD = """\
# Published chat templates

How the calls of {total} published chat templates are read: {native} by a native family, {derived} by a family that was
[derived](rendering.md#calls-of-a-model-that-nobody-declared) from the template; {generic} show no tools, and
[get them as text](rendering.md#tools-for-a-template-that-shows-none); {plain} are not read, for the reason in the row.
Control tokens are what looks like one in the template, because tokenizers are not at hand.

"Proved" means that random answers of the template read back exactly, whole and in pieces; "written" and "constrained"
that the format writes them so too, and that its grammar accepts them. A native family may write the layout of its
models' newest template.

A "no" has its reason at the end of the page.

`python -m tests.formats.template_list SHARED_DATA > docs/templates.md` writes this page, and
`tests/formats/test_template_list.py` fails if a template is read worse than it says.

| template | calls read by | proved | written | constrained |
|---|---|---|---|---|
"""


_REASONS = """
## Why not

- Every template that shows calls is read. Those that are not read show none, but do show tools, in a layout of their
  own, so that the generic one would contradict it; or they end a turn with a mark that only the checkpoint's
  configuration names (Phi-3.5, whose own does).
- RWKV's ends answers with a blank line, which ours do not write.
- "No history" is a template whose instructions have a family's markers, but that shows no earlier calls, or refuses the
  conversation. (Transformers refuses a list's `append` in Kimi K2's, too.) There is nothing to compare.
- Some templates lose what they are sent, so that nothing can read it back: strings without quotes (Llama 3.2 and
  ToolACE as lists of Python calls), without escapes (LFM2.5), without commas between them (Gemma 3), big numbers as
  strings (Llama 4), calls within a line of text (Llama 4 as JSON), no end of a section (DeepSeek R1 distilled). What
  models write in these layouts is read.
- Mistral's show ids that the server makes, and vLLM's copies a blank before a list. We write calls without both, as the
  models do.
- Phi-4-mini's leaves out the word with which its models begin calls, and Llama 4's the marker after content; gpt-oss's
  shows content beside calls as reasoning; Kimi-K3's opens the response anew.
- Engines' copies of DeepSeek's templates write blanks that DeepSeek's own do not have, and Hunyuan's a word before
  each answer. We write the models' own.
- No chat template of Beam, LongCat, dots 3 and K2-Horizon was at hand, and Inkling has none. These families follow
  engines' parsers, renderers, cards and recorded outputs, which their files name.

The first answer that differs, or why none is shown:
""".splitlines()

_RESPONSES = """
## As a response template

Of the {total} templates, {read} call tools. For {equal} of these,
[`dovetail formats --of … --write response_template`](rendering.md#response-templates) writes one by which transformers'
own parser reads all of 24 random answers of the chat template as they were sent, each up to the end of its turn. The
others, and why not:

| template | the first message that reads otherwise, or why none is written |
|---|---|
"""


class Row(NamedTuple):
    name: str
    kind: str
    cells: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"| {' | '.join((self.name, *self.cells))} |"


def rows(shared_data: Path) -> Iterator[Row]:
    for path in chat_templates.paths(shared_data):
        fmt = chat_templates.of(path)
        name = str(path.relative_to(shared_data / "templates").with_suffix(""))
        verdict = fmt.verdict
        if not fmt.reads_calls:
            yield Row(name, "plain", (f"not read: {_line(fmt.derived.derivation.reason)}", "", "", ""))
            continue
        kind = {DERIVED: "derived", GENERIC: "generic"}.get(fmt.family_name, "native")
        reasons = (fmt.derived.derivation.reason,) if verdict is None else tuple(filter(None, verdict))
        marks = ("no history",) * 3 if verdict is None else tuple("no" if problem else "yes" for problem in verdict)
        yield Row(name, kind, (fmt.family_name, *marks), tuple(map(_line, reasons)))


def parse(spec: Any, text: str, prompt: str) -> Any:
    """The message that transformers reads by a response template."""
    from transformers.utils.chat_parsing import parse_response

    try:
        return parse_response(text, spec, prefix=prompt, tools=TOOLS)
    except Exception as error:
        raise Unparsed(str(error).partition("\n")[0]) from None


def responses(shared_data: Path) -> Iterator[tuple[str, str]]:
    """Each template that calls tools, and why no response template reads its answers; "" if one does."""
    for path in chat_templates.paths(shared_data):
        fmt = chat_templates.of(path)
        if fmt.reads_calls:
            yield str(path.relative_to(shared_data / "templates").with_suffix("")), _why_not(fmt)


def _why_not(fmt: JinjaFormat) -> str:
    best: Result | None = None
    try:
        for spec in written(fmt):
            result = roundtrip(fmt, functools.partial(parse, spec))
            if best is None or result.differing < best.differing:
                best = result
            if not result.differing:
                return "" if result.calling else "not known: the chat template shows no calls, and its texts read back"
    except Inexpressible as error:
        return f"none: {error}"
    except DovetailError as error:
        return f"none: {error.message}"
    assert best is not None and best.difference is not None
    _, sent, read, *_ = (f"{each}" if isinstance(each, list) else repr(each) for each in best.difference)
    lost = read.strip("'\"") if "it cannot be read" in read else f"it is read as {read:.90}"
    return f"{best.differing} of {best.messages}, such as {sent:.90}: {lost}"


def responses_section(listed: Iterable[tuple[str, str]], total: int) -> str:
    listed = list(listed)
    others = [f"| {name} | {_line(reason)} |" for name, reason in listed if reason]
    head = _RESPONSES.format(total=total, read=len(listed), equal=len(listed) - len(others))
    return head + "\n".join(others) + "\n"


def _line(text: str) -> str:
    """`text` in one line of Markdown, in a list or a table."""
    return text.replace("\n", " ").replace("<", "\\<").replace("|", "\\|")


def page(listed: Iterable[Row]) -> str:
    listed = list(listed)
    count = Counter(row.kind for row in listed)
    numbers = {kind: count[kind] for kind in ("native", "derived", "generic", "plain")}
    reasons = (f"- {row.name}: {'; '.join(row.reasons)}" for row in listed if row.reasons)
    return _HEAD.format(total=len(listed), **numbers) + "\n".join((*map(str, listed), *_REASONS, *reasons)) + "\n"


if __name__ == "__main__":
    shared = Path(sys.argv[1])
    own = page(rows(shared))
    sys.stdout.write(own + responses_section(responses(shared), len(chat_templates.paths(shared))))
