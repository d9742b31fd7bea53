"""Writes docs/templates.md: how the calls of each published chat template are read.

python -m tests.formats.template_list SHARED_DATA > docs/templates.md
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail.formats.derived.differencing import NAME as DERIVED
from dovetail.formats.derived.generic import NAME as GENERIC
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

The first answer that differs, or why none is shown:
""".splitlines()


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
    sys.stdout.write(page(rows(Path(sys.argv[1]))))
