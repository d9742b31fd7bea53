"""`dovetail formats`: the formats there are, or how the calls of one checkpoint or chat template are read, and why.

For a chat template, the evidence is the answers that it wrote to chosen messages, with the slots found in them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.checkpoints.gguf.header import is_gguf
from dovetail.cli import response_templates
from dovetail.cli.files import print_json, read_text
from dovetail.cli.terminal import CALL, CONTROL, labelled, visible
from dovetail.errors import PlanError
from dovetail.events import Call, Message
from dovetail.formats.base import Format
from dovetail.formats.derived.differencing import NAME as DERIVED
from dovetail.formats.derived.generic import NAME as GENERIC
from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.layouts import SLOTS
from dovetail.formats.derived.template import Template
from dovetail.formats.published import formats_of, published
from dovetail.formats.registry import FAMILIES

_SAMPLE = Message(calls=(Call("functions.get_weather:0", "get_weather", '{"city": "Paris"}'),))
#: What looks like a control token in a template without a tokenizer.
_CONTROL = re.compile(r"<\|[^<>|'\"\s]+\|>|<｜[^｜<>'\"]+｜>|\[/?[A-Z_]{4,}\]")
_SLOT = re.compile(f"([{''.join(SLOTS)}])")


def run(arguments: argparse.Namespace) -> int:
    if arguments.check or arguments.write:
        if arguments.of is None:
            raise PlanError("--check and --write need --of CHECKPOINT")
        if arguments.check:
            return response_templates.check(arguments)
        return response_templates.write(arguments, _format(arguments.of))
    if arguments.of is not None:
        shown: Any = _explained(_format(arguments.of))
    elif arguments.name is not None:
        shown = _named(arguments.name)
    else:
        shown = [_listed(name) for name in FAMILIES]
    if arguments.json:
        print_json(shown)
        return 0
    console = Console(highlight=False)
    if isinstance(shown, list):
        width = max(len(each["name"]) for each in shown) + 2
        for each in shown:
            text = ", ".join(each["models"]) if "models" in each else each["call"]
            line = Text.assemble((f"{each['name']:<{width}}", "bold"), visible(text))
            console.print(line, no_wrap=True, overflow="ellipsis" if console.is_terminal else "ignore", crop=False)
    else:
        _show(console, shown)
    return 0


def _listed(name: str) -> dict[str, str]:
    """A family's name, and a call as its models write it, on one line."""
    written = FAMILIES[name]().write(_SAMPLE, thinking=False)
    return {"name": name, "call": written.text.strip("\n").replace("\n", "⏎")}


def _named(name: str) -> Any:
    """The format called `name`, or the one of a published model; a list where `name` is a part of several."""
    if name in FAMILIES:
        return _explained(FAMILIES[name]()) | {"models": published().get(name, ())}
    found = formats_of(name)
    if len(found) > 1:
        named = ((_listed(each) if each in FAMILIES else {"name": each}, models) for each, models in found.items())
        return [each | {"models": models} for each, models in named]
    ((format_name, models),) = found.items()
    if format_name not in FAMILIES:
        shown = (
            f"the layout of calls is derived from the chat template of {models[0]}"
            if format_name == DERIVED
            else f"the chat template of {models[0]} shows no tools"
        )
        reason = f"{shown}: `dovetail formats --of FOLDER`"
        return {"format": "jinja", "family": format_name, "because": reason, "reads_calls": True, "models": models}
    reason = f"{models[0]} is published with it; when a checkpoint is served, its own files decide"
    return _explained(FAMILIES[format_name]().because_of(reason)) | {"models": models}


def _format(name_or_path: str) -> Format:
    if is_gguf(name_or_path) or not Path(name_or_path).is_file():
        return dovetail.format(name_or_path)
    source = read_text(name_or_path)
    controls = tuple(dict.fromkeys(_CONTROL.findall(source)))
    families = [family() for family in FAMILIES.values()]
    fmt = jinja(Template(source, {"bos_token": "<s>", "eos_token": "</s>"}), (*controls, "<s>", "</s>"), families)
    return fmt.because_of("it is a template without a tokenizer: what looks like a control token counts as one")


def _explained(fmt: Format) -> dict[str, Any]:
    about: dict[str, Any] = {"format": fmt.name, "because": fmt.because, "reads_calls": fmt.reads_calls}
    if not isinstance(fmt, JinjaFormat):
        return about | {"family": fmt.name, "call": fmt.write(_SAMPLE, thinking=False).text}
    derivation, verdict = fmt.derived.derivation, fmt.verdict
    failure = derivation.reason if verdict is None or not fmt.reads_calls else verdict.failure
    about |= {
        "family": fmt.family_name,
        "opening": fmt.call_opening,
        "reasoning": fmt.reasoning,
        "end_of_turn": fmt.end_of_turn,
        "proved": not failure,
        "reason": failure,
    }
    if derivation.shows is not None:
        about |= {"parallel": derivation.shows.parallel, "content_beside_calls": derivation.shows.both}
    if derivation.layout is None:
        return about
    layout = derivation.layout
    return about | {
        "calls": {"kind": type(layout.calls).__name__, **vars(layout.calls)},
        "evidence": [{"answer": name, "text": _with_slots(text)} for name, text in layout.answers],
    }


def _with_slots(text: str) -> str:
    return _SLOT.sub(lambda slot: SLOTS[slot[0]], text)


def _show(console: Console, about: dict[str, Any]) -> None:
    rows = [("format", about["format"]), ("family", about["family"])]
    if about["family"] == GENERIC:
        rows.append(("tools", "text in a generic layout, because the template shows none"))
    for name in ("because", "call", "reasoning"):
        if about.get(name):
            rows.append((name, about[name]))
    if about.get("models"):
        rows.append(("models", ", ".join(about["models"])))
    if about.get("end_of_turn"):
        rows.append(("end of turn", " ".join(about["end_of_turn"])))
    if "calls" in about:
        rows += [(name, repr(value)) for name, value in about["calls"].items() if value and name != "kind"]
    if "parallel" in about:
        rows.append(("parallel", "yes" if about["parallel"] else "no: the template shows one call at most"))
    if "proved" in about:
        proved = "yes: random messages are read, written and constrained as the template renders them"
        rows.append(("proved", proved if about["proved"] else f"no: {about['reason']}"))
    labelled(console, rows)
    for each in about.get("evidence", ()):
        console.print(Text(f"\n{each['answer']}", "bold"))
        console.print(Text.assemble(*_coloured(each["text"])), soft_wrap=True)


def _coloured(text: str) -> Iterator[tuple[str, str]]:
    """The markup that the comparison found, and the slots in it."""
    for piece in re.split(r"(\{(?:name|arguments|id|index|key|value)\})", text):
        yield visible(piece), CALL if re.fullmatch(r"\{\w+\}", piece) else CONTROL
