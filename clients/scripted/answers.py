"""What the scripted model answers: the turns of each conversation, chosen by the last sentence that it knows.

An answer depends on the tool results that followed that sentence, so a conversation whose results get lost on the way
ends in another text than the expected one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from clients import tasks


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
    """A coding agent's task: read the file, replace a word in it, count its lines, report."""
    path = match["path"]
    return _EDIT_STEPS[min(len(results), 3)](path, results)


def _edit_read(path: str, results: Sequence[str]) -> Turn:
    say = ("I read the file first.", "The task names one file.")
    return [
        Say(*say, calls=(("Read", {"file_path": path}),)),
        Say(*say, calls=(("exec_command", {"cmd": f"cat {path}"}),)),
        Say(*say, calls=(("shell", {"command": ["cat", path]}),)),
    ]


def _edit_replace(path: str, results: Sequence[str]) -> Turn:
    # The line as the tool showed it, so that a result that got lost or changed on the way makes the edit fail.
    line = next((line for line in results[0].splitlines() if tasks.OLD in line), "(the line was not shown)")
    old = re.sub(r"^\s*\d+(→|\t)", "", line)  # editors show line numbers
    edit = {"file_path": path, "old_string": old, "new_string": old.replace(tasks.OLD, tasks.NEW)}
    patch = (
        f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{old.replace(tasks.OLD, tasks.NEW)}\n*** End Patch\n"
    )
    script = f"sed -i 's/{old}/{old.replace(tasks.OLD, tasks.NEW)}/' {path}"
    return [
        Say(reasoning="One word changes.", calls=(("Edit", edit),)),
        Say(reasoning="One word changes.", calls=(("apply_patch", {"input": patch}),)),
        Say(reasoning="One word changes.", calls=(("exec_command", {"cmd": script}),)),
        Say(reasoning="One word changes.", calls=(("shell", {"command": ["bash", "-c", script]}),)),
    ]


def _edit_check(path: str, results: Sequence[str]) -> Turn:
    command = f"grep -c {tasks.NEW} {path} | sed 's/^/matches: /'"
    return [
        Say(calls=(("Bash", {"command": command, "description": "Count the changed lines"}),)),
        Say(calls=(("exec_command", {"cmd": command}),)),
        Say(calls=(("shell", {"command": ["bash", "-c", command]}),)),
    ]


def _edit_report(path: str, results: Sequence[str]) -> Turn:
    counted = re.search(r"matches: (\d+)", results[2])
    return [Say(f"The file is edited; lines with the new word: {counted[1] if counted else 'not seen'}.")]


_EDIT_STEPS = (_edit_read, _edit_replace, _edit_check, _edit_report)

SCRIPTS = tuple(
    Script(name, re.compile(pattern), turn)
    for name, pattern, turn in (
        ("hello", re.escape(tasks.HELLO), _hello),
        ("count", re.escape(tasks.COUNT), _count),
        ("weather", re.escape(tasks.WEATHER), _weather),
        ("both", re.escape(tasks.BOTH), _both),
        ("person", re.escape(tasks.PERSON_REQUEST), _person),
        ("edit", tasks.EDIT_PATTERN, _edit),
    )
)
#: For any other conversation: coding agents also ask for titles and summaries.
OTHER: Turn = (Say("Done."),)

#: How the scripted model likes prompts to end: with its answers to the exam.
PREFERRED = tuple(f"{each['question']}\nAnswer: {each['choices'][each['preferred']]}" for each in tasks.EXAM)
