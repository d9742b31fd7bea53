"""Answers to chosen messages as a chat template writes them, with slots in place of names, ids and arguments.

The words of the messages are unlike any template's own text, so that a word that occurs in a prompt shows its place.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from dovetail.errors import DovetailError
from dovetail.formats.answers.call_envelope import ARGUMENTS, ID, KEY, NAME, VALUE
from dovetail.tokens import Prompt

#: (messages, tools, whether the prompt opens an answer) -> the prompt. Raises a `DovetailError` if it is refused.
Render: TypeAlias = Callable[["Messages", "Messages | None", bool], Prompt]
Messages: TypeAlias = Sequence[Mapping[str, Any]]

QUESTION, CONTENT, REASONING, RESULT = "Zqquestion", "Zqanswer", "Zqreasoning", "Zqresult"
USER = {"role": "user", "content": QUESTION}


class SampleCall(NamedTuple):
    name: str
    id: str
    arguments: Mapping[str, Any]


#: Ids of nine characters, because some templates refuse others.
FIRST = SampleCall("zqfind", "zqcall001", {"zqplace": "zqvalueone"})
SECOND = SampleCall("zqother", "zqcall002", {"zqtime": "zqvaluetwo"})
LONG = SampleCall("zqfind", "zqcall001", {"zqplace": "zqvalueone", "zqtime": "zqvaluetwo"})
EMPTY = SampleCall("zqfind", "zqcall001", {})

_STRINGS = {"type": "string", "description": "text"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Finds it",
            "parameters": {
                "type": "object",
                "properties": {"zqplace": _STRINGS, "zqtime": _STRINGS},
                "required": [],
            },
        },
    }
    for name in (FIRST.name, SECOND.name)
]


class Shows(NamedTuple):
    """What a template shows of an answer's calls: several of them, and content beside them."""

    parallel: bool
    both: bool


class SampleAnswers:
    """Renders answers to one question and cuts them out of the prompts.

    `encode`: makes what the template gets as a call's arguments.
    `strip_reasoning`: removes an empty reasoning block from the beginning of an answer.
    `ends`: the control tokens that end a turn.
    """

    def __init__(
        self,
        render: Render,
        controls: Iterable[str],
        encode: Callable[[Mapping[str, Any]], Any],
        strip_reasoning: Callable[[str], str],
        ends: Sequence[str],
    ) -> None:
        self.render = render
        self._atoms = atoms_of(controls)
        self._encode = encode
        self._strip_reasoning = strip_reasoning
        self._ends = ends
        self._opened = self._prompt([USER], opens=True)
        content = self._whole(self.message(CONTENT))
        before, _, after = content.partition(CONTENT)
        #: What surrounds content: before it, and up to the end of the turn.
        self.before_content = self._strip_reasoning(before) if after or before else ""
        self._after_content = after
        #: What the template writes after the turn: instructions, perhaps. It may not end a turn with calls before that.
        self._next_turn = ""
        self.after_content, self.end = self._cut_end(after)
        self._next_turn = after[len(self.after_content + self.end) :].lstrip()

    def rendered_by(self, render: Render) -> SampleAnswers:
        """The same answers by another renderer."""
        other = copy.copy(self)
        other.render = render
        return other

    def message(self, content: str | None, *calls: SampleCall) -> dict[str, Any]:
        called = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": self._encode(call.arguments)},
            }
            for call in calls
        ]
        return {"role": "assistant", "content": content, **({"tool_calls": called} if called else {})}

    def calling(self, *calls: SampleCall, content: str = "") -> str | None:
        """The answer with slots, without its reasoning and its end; None if the template does not show the calls."""
        results = [{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": RESULT} for call in calls]
        for shown in (content, *(() if content else (None,))):
            for more in ((), results):
                text = self._whole(self.message(shown, *calls), *more)
                slotted = self._slotted(text, calls)
                if slotted is None:
                    continue
                before, calls_text, after = _around_slots(slotted)
                before = self._strip_reasoning(before)
                return before + calls_text + self._cut_end(after)[0]
        return None

    def shows(self) -> Shows | None:
        """What the template shows of calls; None if it shows none."""
        names = [self._shown(FIRST), self._shown(FIRST, SECOND), self._shown(FIRST, content=CONTENT)]
        return Shows(names[1], names[2]) if names[0] else None

    def refusal(self) -> str:
        """Why the template does not render a call; "" if it does."""
        try:
            self.render([USER, self.message("", FIRST)], TOOLS, False)
        except DovetailError as error:
            return error.message
        return ""

    def _shown(self, *calls: SampleCall, content: str = "") -> bool:
        """Whether the template shows the calls, and the content before them in the same turn."""
        for text in (content, content or None):
            whole = self._whole(self.message(text, *calls))
            if all(word in whole for call in calls for word in (call.name, *call.arguments.values())):
                begin, stop = whole.find(content), whole.index(calls[0].name)
                return not content or (0 <= begin < stop and not any(end in whole[begin:stop] for end in self._ends))
        return False

    def atoms(self, text: str) -> list[str]:
        """`text` as control tokens, tags and characters."""
        return self._atoms.findall(text)

    def _prompt(self, messages: Sequence[Mapping[str, Any]], *, opens: bool = False) -> str:
        with contextlib.suppress(DovetailError):
            return self.render(messages, TOOLS, opens).text
        return ""

    def _whole(self, message: Mapping[str, Any], *more: Mapping[str, Any]) -> str:
        """What the template writes after the question's generation prompt."""
        answered = self._prompt([USER, message, *more])
        return answered[begin_of_answer(self.atoms, self._opened, answered, QUESTION) :]

    def _cut_end(self, text: str) -> tuple[str, str]:
        """`text` without the end of the turn and what follows it, and the end."""
        if self._next_turn:
            text = text.removesuffix(self._next_turn)
        places = [(text.find(end), -len(end), end) for end in self._ends if end in text]
        if places:
            at, _, end = min(places)
            return text[:at], end
        if self._after_content and text.endswith(self._after_content):
            text = text.removesuffix(self._after_content)
        return text, ""

    def _slotted(self, text: str, calls: Sequence[SampleCall]) -> str | None:
        """`text` with slots; None if it does not show each call once and in order."""
        made, at = "", 0
        for i, call in enumerate(calls):
            stop = text.find(calls[i + 1].name, at) if i + 1 < len(calls) else len(text)
            part = text[at:stop] if stop >= 0 else ""
            # The text before the next name may already belong to the next call; names and ids are unique.
            part = part.replace(call.name, NAME).replace(call.id, ID)
            written = _with_arguments(part, call.arguments)
            if written is None or NAME not in written:
                return None
            made += written
            at = stop
        ids = "|".join(re.escape(call.id) for call in calls)
        return re.sub(ids, ID, made)


def writes_last_answer_otherwise(render: Render) -> bool:
    """Whether what stands before an answer depends on whether the conversation goes on after it.

    A template may leave the last answer open, because its model goes on from there.
    """
    messages = [USER, {"role": "assistant", "content": CONTENT}]
    with contextlib.suppress(DovetailError):
        last, earlier = (view(messages, TOOLS, False).text for view in (render, in_history(render)))
        return last.partition(CONTENT)[0] != earlier.partition(CONTENT)[0]
    return False


def in_history(render: Render) -> Render:
    """`render` for conversations that go on: an answer at the end gets the results of its calls, or a question."""

    def rendered(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, opens: bool
    ) -> Prompt:
        last = messages[-1]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": RESULT}
            for call in last.get("tool_calls", ())
        ]
        if last["role"] == "assistant":
            messages = [*messages, *(results or [{"role": "user", "content": RESULT}])]
        return render(messages, tools, opens)

    return rendered


def _with_arguments(text: str, arguments: Mapping[str, Any]) -> str | None:
    """`text` with slots in place of the arguments: one for a JSON object, or slots for its keys and values."""
    if not arguments:
        found = re.search(r"\{\s*\}", text)
        return text if found is None else text[: found.start()] + ARGUMENTS + text[found.end() :]
    keys = list(arguments)
    at = text.find(keys[0])
    start = text.rfind("{", 0, at) if at >= 0 else -1
    if start >= 0:
        with contextlib.suppress(ValueError):
            value, end = json.JSONDecoder().raw_decode(text, start)
            if value == arguments:
                return text[:start] + ARGUMENTS + text[end:]
    for key, value in arguments.items():
        if text.count(key) != 1 or text.count(value) != 1:
            return None
        text = text.replace(key, KEY).replace(value, VALUE)
    return text


def _around_slots(text: str) -> tuple[str, str, str]:
    places = [at for at, character in enumerate(text) if character in (NAME, ID, ARGUMENTS, KEY, VALUE)]
    return text[: places[0]], text[places[0] : places[-1] + 1], text[places[-1] + 1 :]


def atoms_of(controls: Iterable[str]) -> re.Pattern[str]:
    """Finds control tokens, tags of text, and characters."""
    literals = sorted(filter(None, controls), key=len, reverse=True)
    return re.compile("|".join((*map(re.escape, literals), r"</?[^<>\s\uE000-\uE0FF]+>", "(?s:.)")))


def begin_of_answer(atoms: Callable[[str], list[str]], opened: str, answered: str, question: str) -> int:
    """Where the answer begins in the prompt `answered`; `opened` is the prompt that opens an answer to `question`.

    The template may write what is before the question otherwise, or a part of the generation prompt.
    """
    places = [text.rfind(question) + len(question) if question in text else 0 for text in (opened, answered)]
    header, answer = (atoms(text[at:]) for text, at in zip((opened, answered), places, strict=True))
    same = common(header, answer)
    last = next((i for i in range(len(header) - 1, -1, -1) if len(header[i]) > 1), 0)  # its last tag
    tail = header[last:]
    for i in range(max(0, same + 1 - len(tail)), len(answer) if last >= same and tail else 0):
        if answer[i : i + len(tail)] == tail:
            same = i + len(tail)
            break
    return places[1] + len("".join(answer[:same]))


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many items two sequences have in common at their beginnings."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
