"""Refuses some habits of prose that make a reader look back for the noun: `python -m tests.prose`, in `make lint`.

Checked are the comments and strings of src/ and the pages of docs/ (docs/decisions/ are records, and stay as they are).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: What is refused -> what to write.
HABITS = {
    r"\b(that|those) of\b": "the noun in place of the pronoun",
    # "None if there is none" is plain, and so is the value of a setting.
    r"(?<![Tt]here)(?<!drafter) (is|are) none\b(?! of)": "what it is not, by its noun",
    r"\bso (many|much)\b": "the number, by its name",
}
#: The same, for the first words of docstrings.
OPENINGS = {r"(Of|By|In) ": "a subject first"}


class Text(NamedTuple):
    """A comment, a string, or a paragraph of a page. `line`: where it begins. `opens`: whether it is a docstring."""

    line: int
    text: str
    opens: bool = False


def faults(path: Path) -> Iterator[str]:
    """Every habit in the file, as `path:line: words: what to write`."""
    read = path.read_text(encoding="utf-8")
    for line, text, opens in python(read) if path.suffix == ".py" else paragraphs(read):
        words, lines = flat(text)
        found = [(match, advice) for habit, advice in HABITS.items() for match in re.finditer(habit, words)]
        found += [(match, advice) for start, advice in OPENINGS.items() if opens and (match := re.match(start, words))]
        for match, advice in found:
            at = line + lines[words.count(" ", 0, match.start())]
            yield f"{path.relative_to(ROOT)}:{at}: {match.group().strip()!r}: {advice}"


def flat(text: str) -> tuple[str, list[int]]:
    """The words of `text` with one blank between them, and the line of each; without the `#` of comments."""
    words = [(word, number) for number, line in enumerate(text.split("\n")) for word in line.split()]
    words = [(word, number) for word, number in words if word not in ("#", "#:")]
    return " ".join(word for word, _ in words), [number for _, number in words]


def python(source: str) -> Iterator[Text]:
    """Runs of comments, and strings, of a module."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node) is not None
    }
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    comment: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield Text(last - len(comment) + 1, "\n".join(comment))
                comment = []
            comment.append(token.string)
            last = token.start[0]
        elif token.type in strings:
            yield Text(token.start[0], token.string.strip("\"'"), token.start in docstrings)
    if comment:
        yield Text(last - len(comment) + 1, "\n".join(comment))


def paragraphs(page: str) -> Iterator[Text]:
    """The paragraphs of a page, without its code blocks."""
    page = re.sub(r"^```.*?^```", lambda block: re.sub(r"[^\n]", "", block.group()), page, flags=re.M | re.S)
    for match in re.finditer(r"(?:^.*\S.*\n?)+", page, re.M):
        yield Text(page.count("\n", 0, match.start()) + 1, match.group())


def files() -> Iterable[Path]:
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted((ROOT / "docs" / "verify").glob("*.md"))


def main() -> int:
    found = [fault for path in files() for fault in faults(path)]
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
