"""What the scripted model answers: the turns of each conversation, chosen by the last sentence that it knows.

An answer depends on the tool results that followed that sentence, so a conversation whose results get lost on the way
ends in another text than the expected one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clients import tasks
from clients.scripted.agents import HANDS


class Say(NamedTuple):
    """One answer: text, reasoning, and calls as (name, arguments)."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


#: The possible answers of one turn, best first. The model gives the first that the request's grammar allows.
Turn = Sequence[Say]


class Script(NamedTuple):
    """`pattern`: the sentence of the user. `turn`: the answer after some tool results."""

    name: str
    pattern: re.Pattern[str]
    turn: Callable[[re.Match[str], Sequence[str]], Turn]


def _value(result: str) -> Any:
    """The value in a tool's result: `{"result": "red"}`, a JSON string, or plain text."""
    try:
        decoded = json.loads(result)
    except ValueError:
        return result.strip()
    return decoded.get("result", decoded) if isinstance(decoded, dict) else decoded


def _hello(match: re.Match[str], results: Sequence[str]) -> Turn:
    return [
        Say(tasks.HELLO_ANSWER, tasks.HELLO_REASONING),
        Say(calls=(("final_answer", {"answer": tasks.HELLO_ANSWER}),)),
    ]


def _count(match: re.Match[str], results: Sequence[str]) -> Turn:
    return [Say(tasks.COUNT_ANSWER)]


def _weather(match: re.Match[str], results: Sequence[str]) -> Turn:
    if not results:
        return [Say(reasoning=tasks.WEATHER_REASONING, calls=(("get_weather", {"city": "Paris"}),))]
    answer = f"The result is {_value(results[-1])}."
    return [Say(calls=(("final_answer", {"answer": answer}),)), Say(answer)]


def _both(match: re.Match[str], results: Sequence[str]) -> Turn:
    if not results:
        cities = ("Paris", "Rome")
        return [Say("Let me check.", calls=tuple(("get_weather", {"city": city}) for city in cities))]
    return [Say(" ".join(f"The result is {_value(result)}." for result in results))]


def _person(match: re.Match[str], results: Sequence[str]) -> Turn:
    """JSON as content, or a call of the tool as which a client declares the schema."""
    calls = (
        Say(calls=((name, tasks.PERSON),))
        for name in ("Person", "person", "PartialPerson", "final_result", "json", "json_tool_call")
    )
    return [Say(json.dumps(tasks.PERSON)), *calls, Say(calls=(("final_answer", {"answer": json.dumps(tasks.PERSON)}),))]


def _edit(match: re.Match[str], results: Sequence[str]) -> Turn:
    """A coding agent's task: read the file and one that is missing, replace a word, count its lines, report."""
    path, hands = match["path"], HANDS[match["tools"]]
    if len(results) < 2:
        missing = hands.run(f"cat {Path(path).with_name(tasks.MISSING)}")
        say = Say("I read the file first.", "The task names one file.", (hands.read(path), missing))
        return [say, say._replace(text="")]  # a required call has no text before it
    if len(results) == 2:
        # The line as the tool showed it, so that a result that got lost or changed on the way makes the edit fail.
        shown = re.search(rf"This[^\n.]*{tasks.OLD}[^\n.]*\.", results[0])
        old = shown[0] if shown else "(the line was not shown)"
        return [Say(reasoning="One word changes.", calls=(hands.edit(path, old, old.replace(tasks.OLD, tasks.NEW)),))]
    if len(results) == 3:
        return [Say(calls=(hands.run(f"grep -c {tasks.NEW} {path} | sed 's/^/matches: /'"),))]
    counted = re.search(r"matches: (\d+)", results[3])
    report = f"The file is edited; lines with the new word: {counted[1] if counted else 'not seen'}."
    return [Say(report) if hands.report is None else Say(calls=(hands.report(report),))]


def _blocks(match: re.Match[str], results: Sequence[str]) -> Turn:
    """The same for an agent without tools."""
    line = next(line for line in tasks.EDIT_FILE.splitlines() if tasks.OLD in line)
    edit = f"<<<<<<< SEARCH\n{line}\n=======\n{line.replace(tasks.OLD, tasks.NEW)}\n>>>>>>> REPLACE"
    return [Say(f"{Path(match['path']).name}\n```\n{edit}\n```\n\n{tasks.EDIT_ANSWER}", "One word changes.")]


def seen(color: str) -> str:
    """The text that stands for a picture in the prompts that scripts read."""
    return f"[a {color} picture]"


_SEEN = re.compile(re.escape(seen("COLOR")).replace("COLOR", r"(\w+)"))


def _sight(match: re.Match[str], results: Sequence[str]) -> Turn:
    return [Say(tasks.sight_answer(_SEEN.findall(match.string, match.end())))]


def _look(match: re.Match[str], results: Sequence[str]) -> Turn:
    """An agent's tool shows a picture, in its result or in a message behind it."""
    hands = HANDS[match["tools"]]
    assert hands.look is not None
    return _sight(match, results) if results else [Say(calls=(hands.look(match["path"]),))]


def _slow(match: re.Match[str], results: Sequence[str]) -> Turn:
    return [Say(tasks.SLOW_ANSWER)]


def _grow(match: re.Match[str], results: Sequence[str]) -> Turn:
    first = int(match["number"]) + len(results)
    return [Say(calls=(HANDS[match["tools"]].run(f"seq {first} {first + 4000}"),))]


def _went_on(match: re.Match[str], results: Sequence[str]) -> Turn:
    return [Say(tasks.WENT_ON)]


SCRIPTS = tuple(
    Script(name, re.compile(pattern), turn)
    for name, pattern, turn in (
        ("hello", re.escape(tasks.HELLO), _hello),
        ("count", re.escape(tasks.COUNT), _count),
        ("weather", re.escape(tasks.WEATHER), _weather),
        ("both", re.escape(tasks.BOTH), _both),
        ("person", re.escape(tasks.PERSON_REQUEST), _person),
        ("edit", tasks.EDIT_PATTERN, _edit),
        ("blocks", tasks.BLOCKS_PATTERN, _blocks),
        ("sight", re.escape(tasks.SIGHT), _sight),
        ("look", tasks.LOOK_PATTERN, _look),
        ("slow", re.escape(tasks.SLOW), _slow),
        ("grow", tasks.GROW_PATTERN, _grow),
        ("shortened", re.escape(tasks.SHORTENED), _went_on),
    )
)
#: For any other conversation: coding agents also ask for titles and summaries.
OTHER: Turn = (Say("Done."),)
#: Once a growing conversation has become shorter.
SHORTENED: Turn = (Say(tasks.SHORTENED),)

#: How the scripted model likes prompts to end: with its answers to the exam.
PREFERRED = tuple(f"{each['question']}\nAnswer: {each['choices'][each['preferred']]}" for each in tasks.EXAM)
