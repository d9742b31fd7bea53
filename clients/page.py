"""Writes docs/clients.md: which client passes what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clients.catalogue import CLIENTS, ENVIRONMENTS
from clients.features import AGENT, LIMITS, MEASURE, SCHEMAS, SIGHT, TEXT, TOOLS, Feature
from clients.results import Row, title

_LACKS = {title(client): client.lacks for client in CLIENTS}

_INTRODUCTION = """\
# Clients

Which clients work with Dovetail, unmodified. `python -m clients` runs them all, each in an environment of its own,
against a served Dovetail on loopback, and writes this page; `python -m clients openai codex` runs some.

The servers: the bundled demo model (`dovetail serve`), and a scripted model whose answers are known, up to seven tokens
in a step, in the wire format `kimi_k25`; for the vendors' own packages, openai-agents, pydantic-ai, langchain, litellm,
smolagents and all that do the edit task also in `deepseek_v32` and `qwen3_coder`. Clients that do the edit task are not
run against the demo model, whose context of 4,096 tokens their prompts exceed, nor is smolagents, whose wording of tool
results is too much for so small a model; aiperf only with chat.

The edit task: two calls in one answer, of a file and of one that is not there; an edit with the line as the tool showed
it; a command; a report. Coding agents do it headless with their own tools, frameworks with three functions. Agents are
told of a context larger than the server's, so that they meet its end (in `kimi_k25` only, because it takes long).

Pictures: the scripted model names the colors of those that reach it (in `kimi_k25`, the one that sees).

- `yes`: with every server, the client saw exactly what the model wrote (the demo model: the right kind of answer).
- `–`: the client, or the API that it uses, does not offer it; some have a [note](#notes).
- `not tried`: its program does not try it.
- `no`, or the names of servers: see [Faults](#faults).
"""
_SECTIONS = (
    ("Text", TEXT),
    ("Tools", TOOLS),
    ("Schemas", SCHEMAS),
    ("Limits", LIMITS),
    ("Pictures", SIGHT),
    ("The edit task", AGENT),
    ("Evaluation and load", MEASURE),
)


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for heading, features in _SECTIONS:
        shown = [row for row in rows if any(feature.name in row.tried for feature in features)]
        parts.append(f"## {heading}\n\n{_meanings(features)}\n\n{_features(shown, features)}")
    parts.append(f"## Notes\n\n{_notes()}")
    parts.append(f"## Faults\n\n{_faults(rows)}")
    parts.append(f"## Versions\n\n{_versions(rows)}")
    return "\n".join(parts)


def _meanings(features: Sequence[Feature]) -> str:
    return "\n".join(f"- **{feature.title}**: {feature.meaning}" for feature in features)


def _notes() -> str:
    notes: dict[str, list[str]] = {}
    for client in CLIENTS:
        if client.note:
            notes.setdefault(client.note, []).append(title(client))
    return "".join(f"- {'; '.join(titles)}: {note}.\n" for note, titles in notes.items())


def _features(rows: Sequence[Row], features: Sequence[Feature]) -> str:
    head = ("client, API", *(feature.title for feature in features))
    return _table(
        head,
        ((row.title, *(row.cell(feature.name, _LACKS.get(row.title, ())) for feature in features)) for row in rows),
    )


def _faults(rows: Sequence[Row]) -> str:
    skipped = [(row.title, "all", "", row.skipped) for row in rows if row.skipped is not None]
    faults = [
        (row.title, feature, target, " ".join(reason.split())[:240])
        for row in rows
        for target, feature, reason in row.faults
    ]
    return _table(("client, API", "feature", "server", "because"), skipped + faults) if skipped + faults else "None.\n"


def _versions(rows: Sequence[Row]) -> str:
    registries = {title(client): ENVIRONMENTS[client.environment].kind for client in CLIENTS}
    packages = {
        (package, registries.get(row.title, "")): (version, row.date)
        for row in rows
        for package, version in row.versions.items()
    }
    head = ("package", "registry", "version", "run on")
    return _table(head, ((*package, *found) for package, found in sorted(packages.items())))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
