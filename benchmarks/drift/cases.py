"""What is read besides the corpus: well-formed answers, and prose about markup as cases."""

from __future__ import annotations

import json
from collections.abc import Iterator

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.registry import FAMILIES
from tests.drift import corpus
from tests.drift.corpus import Case
from tests.reading import families

WELL_FORMED = "well-formed"
TOOLS = next(case.tools for case in corpus.cases() if len(case.tools) > 1)
#: Calls of these tools.
_CALLS = (("find_items", '{"query": "red lamp", "tags": ["small"]}'), ("run_shell", '{"command": "ls -l"}'))
#: Tokens that end a turn and are part of its markup all the same.
_SAYS = ("<|call|>", "<|calls|>", "<|flush|>", "<|return|>")


def well_formed() -> Iterator[Case]:
    """Answers as each format writes them: text, a call, two calls after text, and the same after reasoning.

    They show that an engine is set up as it should be.
    """
    for name in FAMILIES:
        count = 1 if name in families.ONE_CALL else 2
        calls = [Call(f"functions.{tool}:{i}", tool, arguments) for i, (tool, arguments) in enumerate(_CALLS[:count])]
        texts = ("", "I look that up.")
        for text, called, thought in (
            *((text, called, "") for text, called in ((texts[1], 0), (texts[0], 1), (texts[1], count))),
            *((text, called, "They want a lamp.") for text, called in ((texts[1], 0), (texts[1], count))),
        ):
            if thought and not families.reasons(name, True):
                continue
            fmt = dovetail.format(name)
            written = fmt.write(Message(text, thought, tuple(calls[:called])), thinking=bool(thought)).text
            end = next((end for end in (*fmt.end_of_turn, *fmt.inside_turns) if written.endswith(end)), "")
            meant = [
                {"name": call.name, "arguments": json.loads(call.arguments), "ended": True} for call in calls[:called]
            ]
            yield Case(
                group=WELL_FORMED,
                kind=WELL_FORMED,
                format=name,
                thinking=bool(thought) and families.opened(name, True),
                tools=TOOLS,
                text=written if end in _SAYS else written.removesuffix(end),
                finish="stop",
                ids=False,
                meant={"content": text, "reasoning": thought, "calls": meant},
                source="own",
            )


def prose() -> Iterator[Case]:
    """Each text about markup in the formats that it is about: as an answer, and in the reasoning before one."""
    for names, text in corpus.prose():
        for name in names:
            for reasoning in (False, True) if families.reasons(name, True) else (False,):
                if corpus.reasons_itself(name, text, reasoning=reasoning):
                    continue
                before, after = corpus.around(name, reasoning=reasoning)
                words = corpus.WORDS
                meant = {"content": words.content if reasoning else text, "reasoning": text if reasoning else ""}
                group = "prose in reasoning" if reasoning else "prose as an answer"
                yield Case(
                    group=group,
                    kind=group,
                    format=name,
                    thinking=reasoning and families.opened(name, True),
                    tools=TOOLS,
                    text=before + text + after,
                    finish="stop",
                    ids=False,
                    meant=meant | {"calls": []},
                    source="own",
                )
