"""The corpus of drift: outputs as models really write them, and what they meant. Plain data beside this file.

A case has a `kind`, a `format`, a `source` (the report whose kind it is, or "own"), `thinking` (whether the prompt left
reasoning open), `tools` (a set of tools.json), the `text`, `finish` (why the engine stopped), `ids` (whether the
control tokens of the text come as tokens) and what is `meant`: content, reasoning and calls. A call has its arguments
as JSON values; `ended` says whether the call is complete, null that either will do.

A call that nobody can read has one argument, `malformed_arguments`, whose text holds what the model wrote as arguments.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dovetail
from dovetail.events import CallEnd, Event, Message
from dovetail.formats.turn import Turn
from dovetail.tokens import raw_prompt
from tests.reading import families

FOLDER = Path(__file__).parent
#: The one argument of a call that cannot be read.
MALFORMED = "malformed_arguments"
#: Stand for the texts where an answer is written.
WORDS = Message("CONTENT", "REASONING")
#: What may be missing at the end of JSON text that was cut off.
_ENDS = ("", '"', '"}', "}", '"]}', "]}", '"}}', "}}")


@dataclass(frozen=True)
class Case:
    """An output and what it means. `meant` is as in the files."""

    group: str
    kind: str
    format: str
    thinking: bool
    tools: Sequence[dict[str, Any]]
    text: str
    finish: str
    ids: bool
    meant: dict[str, Any]
    source: str


@functools.cache
def cases() -> tuple[Case, ...]:
    """All cases, in the order of the files."""
    tools = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        if path.name != "tools.json":
            for case in json.loads(path.read_text(encoding="utf-8")):
                fields = {"ids": False, **case, "tools": tools[case["tools"]]}
                found.append(Case(group=path.stem, **fields))
    return tuple(found)


def pieces(text: Any, seed: int) -> list[Any]:
    """`text`, or ids, in some pieces of random lengths: the same ones for the same seed."""
    choose = random.Random(seed)
    places = sorted(choose.randrange(len(text) + 1) for _ in range(choose.randint(1, 9)))
    return [text[a:b] for a, b in pairwise((0, *places, len(text)))]


def cuts(case: Case) -> Iterator[list[str] | list[list[int]]]:
    """The output whole, by characters or tokens, and in random pieces; as ids where the case says so."""
    whole: Any = case.text
    if case.ids:
        tokenizer = families.tokenizer_of(case.format)
        whole = raw_prompt(case.text, tokenizer, prefix=False, controls=True).ids(tokenizer)
    yield [whole]
    yield [whole[at : at + 1] for at in range(len(whole))]
    for seed in range(3):
        yield pieces(whole, seed)


def read(case: Case, cut: Sequence[str] | Sequence[list[int]]) -> tuple[dict[str, Any], list[str]]:
    """What Dovetail reads, in the shape of `Case.meant` with arguments as text, and the kinds of defects.

    The reader is the gateway's.
    """
    turn = Turn(dovetail.format(case.format), tools=case.tools, left_open=case.thinking)
    reader = turn.reader(families.tokenizer_of(case.format) if case.ids else None)
    events: list[Event] = []
    for piece in cut:
        events += reader.feed(piece) if isinstance(piece, str) else reader.feed("", piece)
    events += reader.finish(case.finish)
    message = dovetail.fold(events)
    ended = {event.index for event in events if isinstance(event, CallEnd)}
    calls = [
        {"name": call.name, "arguments": call.arguments, "ended": number in ended}
        for number, call in enumerate(message.calls)
    ]
    answer = {"content": message.content, "reasoning": message.reasoning, "calls": calls}
    return answer, [defect.kind for defect in message.defects]


def fault(answer: dict[str, Any], meant: dict[str, Any]) -> str | None:
    """The first thing in `answer` that is not as meant; None if all is. Whitespace around texts is not compared."""
    names = [call["name"] for call in answer["calls"]]
    if names != [call["name"] for call in meant["calls"]]:
        return f"calls of {names}"
    for call, wanted in zip(answer["calls"], meant["calls"], strict=True):
        if not _same(call["arguments"], wanted):
            return f"arguments {call['arguments']!r}"
        if "ended" in call and wanted["ended"] not in (None, call["ended"]):
            return "a call that has no end" if wanted["ended"] else "a call that has an end"
    for part in ("content", "reasoning"):
        if answer[part].strip() != meant[part].strip():
            return f"{part} {answer[part]!r}"
    return None


def _same(text: str, wanted: dict[str, Any]) -> bool:
    """Whether arguments, as JSON text, are those that are wanted."""
    arguments = wanted["arguments"]
    if arguments == "":  # no argument was written yet
        return text in ("", "{")
    try:
        given = json.loads(text) if wanted["ended"] else _closed(text)
    except ValueError:
        return False
    if isinstance(arguments, dict) and MALFORMED in arguments:
        raw = given.get(MALFORMED) if isinstance(given, dict) else None
        return isinstance(raw, str) and arguments[MALFORMED] in raw
    # As text, because to Python true is 1 and 1.0 is 1.
    return json.dumps(given, sort_keys=True) == json.dumps(arguments, sort_keys=True)


def _closed(text: str) -> Any:
    """The value of JSON text that may lack its end."""
    for end in _ENDS:
        try:
            return json.loads(text + end)
        except ValueError:
            pass
    raise ValueError(f"no JSON: {text!r}")


def prose() -> Iterator[tuple[list[str], str]]:
    """Texts that explain markup, each with the formats whose markup it is.

    A line `%%` stands between the texts of a file; the first says which formats they are.
    """
    for path in sorted((FOLDER / "prose").glob("*.txt")):
        head, *texts = path.read_text(encoding="utf-8").split("\n%%\n")
        for text in texts:
            yield head.removeprefix("formats:").split(), text.strip()


def around(name: str, *, reasoning: bool) -> tuple[str, str]:
    """What the family writes before and after the text of an answer, or of its reasoning."""
    fmt = families.format_of(name)
    message = WORDS if reasoning else Message(WORDS.content)
    written = fmt.write(message, thinking=reasoning).text
    end = next((end for end in fmt.end_of_turn if written.endswith(end)), "")
    before, _, after = written.partition(WORDS.reasoning if reasoning else WORDS.content)
    return before, after.removesuffix(end)


def reasons_itself(name: str, text: str, *, reasoning: bool) -> bool:
    """Whether the text holds tags of reasoning, which mean what they say: in reasoning its end, in an answer either."""
    kind = families.format_of(name).reader_type
    tags = {kind.think_end.strip()} if reasoning else {kind.think.strip(), kind.think_end.strip()}
    if reasoning:
        tags.add(around(name, reasoning=True)[1].partition(WORDS.content)[0].strip())
    return any(tag in text for tag in tags - {""})
