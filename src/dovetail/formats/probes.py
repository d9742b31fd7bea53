"""What a chat template makes of small conversations: the only way to know how its model speaks and what it was shown.

A `Probe` asks once, when a `JinjaFormat` is made. Where a template refuses a conversation, it shows nothing of it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dovetail.conversation import Call, Message
from dovetail.errors import DovetailError
from dovetail.formats.base import Format
from dovetail.formats.history import REASONING_FIELDS, HistoryRules
from dovetail.tokens import Prompt

#: Renders messages and tools, with or without a generation prompt. Raises `DovetailError`.
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], Prompt]

#: Words that no template writes itself, and that survive whatever it does with them.
_ASKED, _SAID, _MORE, _THOUGHT, _RESULT, _PLACE = "Wasked", "Wsaid", "Wmore", "Wthought", "Wresult", "Wplace"
_NAME, _KEY = "find_it", "place"
_ARGUMENTS = {_KEY: _PLACE}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Finds it",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "where"}}},
        },
    }
]
_USER = {"role": "user", "content": _ASKED}
_SHORT_ID, _LONG_ID = "call00001", "call_0123456789abcdef01234567"


def _answer(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _calling(arguments: Any, call_id: str = _SHORT_ID, **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def _result(content: Any = _RESULT, call_id: str = _SHORT_ID) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": content}


class Block(NamedTuple):
    """How reasoning is marked off: the tags, and how many newlines behind either are markup.

    Newlines in front of `think_end` are part of it.
    """

    think: str
    after_think: int
    think_end: str
    after_think_end: int


class Probe:
    """The answers of one template, whose text is `source`."""

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._source = source
        self._prompts: dict[str, Prompt | None] = {}
        self._shows_objects, self._shows_strings = map(self._shows_arguments, (_ARGUMENTS, json.dumps(_ARGUMENTS)))
        takes_objects = self._shows_objects or not self._shows_strings
        self._arguments: Any = _ARGUMENTS if takes_objects else json.dumps(_ARGUMENTS)
        self._reasoned = self._reasoning()

    def _prompt(self, *messages: Mapping[str, Any], open_turn: bool = False) -> Prompt | None:
        """With a tool or, if that is refused, without; None if that is refused too."""
        asked = json.dumps((messages, open_turn))
        if asked not in self._prompts:
            self._prompts[asked] = None
            for tools in (_TOOLS, None):
                with contextlib.suppress(DovetailError):
                    self._prompts[asked] = self._render(messages, tools, open_turn)
                    break
        return self._prompts[asked]

    def _text(self, *messages: Mapping[str, Any]) -> str:
        prompt = self._prompt(*messages)
        return "" if prompt is None else prompt.text

    # -- what it wants of a history -----------------------------------------------------------------------------------

    def history_rules(self, family: Format) -> HistoryRules:
        """`family` says what ids its calls have, where the template leaves that open."""
        return HistoryRules(
            call_id=_nine_digits if self._refuses_long_ids() else family.history_rules.call_id,
            parts=self._parts(),
            arguments="object" if self._shows_objects and not self._shows_strings else "any",
            null_beside_calls=self._null_beside_calls(),
            developer=self._knows_developer(),
            reasoning_field=self._reasoned[0] if self._reasoned else REASONING_FIELDS[0],
            results_in_order=self._hides_whose_result(family.history_rules.call_id or _nine_digits),
        )

    def _shows_arguments(self, arguments: Any) -> bool:
        """Whether it shows a call's arguments, and not encoded once more."""
        texts = (
            self._text(_USER, _calling(arguments, content=said), *more)
            for said in ("", None)
            for more in ((), (_result(),))
        )
        return any(_PLACE in text and f'\\"{_KEY}' not in text for text in texts)

    def _parts(self) -> Literal["any", "text", "parts"]:
        """Two parts of text have to be shown as a string is, in every message in which that is shown."""
        as_text, as_parts = _SAID + _MORE, [{"type": "text", "text": text} for text in (_SAID, _MORE)]
        wanted: Literal["any", "text"] = "any"
        for role in ("user", "system", "assistant", "tool"):
            text, parts = (self._shows_content(role, content) for content in (as_text, as_parts))
            if role == "user" and parts and not text:
                return "parts"
            if text and not parts:
                wanted = "text"
        return wanted

    def _shows_content(self, role: str, content: Any) -> bool:
        messages: dict[str, list[dict[str, Any]]] = {
            "user": [{"role": "user", "content": content}],
            "system": [{"role": "system", "content": content}, _USER],
            "assistant": [_USER, _answer(content), _USER],
            "tool": [_USER, _calling(self._arguments), _result(content)],
        }
        text = self._text(*messages[role])
        return _SAID in text and _MORE in text and not _AS_JSON.search(text)

    def _knows_developer(self) -> bool:
        """Whether it has a word for that role, and does not only print whatever role it is given."""
        developer, system = (
            _SAID in self._text({"role": role, "content": _SAID}, _USER) for role in ("developer", "system")
        )
        return developer and ("developer" in self._source or not system)

    def _refuses_long_ids(self) -> bool:
        short, long = (
            _PLACE in self._text(_USER, _calling(self._arguments, call_id), _result(call_id=call_id))
            for call_id in (_SHORT_ID, _LONG_ID)
        )
        return short and not long

    def _null_beside_calls(self) -> bool:
        empty, null = (_PLACE in self._text(_USER, _calling(self._arguments, content=said)) for said in ("", None))
        return null and not empty

    def _hides_whose_result(self, call_id: Callable[[str, int], str]) -> bool:
        """Whether two results look the same when each answers the other's call."""
        names = (_NAME, f"{_NAME}_too")
        ids = [call_id(name, number) for number, name in enumerate(names)]
        calls = [
            {"id": given, "type": "function", "function": {"name": name, "arguments": self._arguments}}
            for given, name in zip(ids, names, strict=True)
        ]
        results = [
            {"role": "tool", "tool_call_id": given, "name": name} for given, name in zip(ids, names, strict=True)
        ]
        straight, crossed = (
            self._text(
                _USER, _answer("", tool_calls=calls), {**first, "content": _RESULT}, {**second, "content": _MORE}, _USER
            )
            for first, second in (results, results[::-1])
        )
        return straight == crossed and 0 <= straight.find(_RESULT) < straight.find(_MORE)

    # -- how its model speaks -----------------------------------------------------------------------------------------

    def _reasoning(self) -> tuple[str, str] | None:
        """The field in which reasoning is read, and a prompt that shows it."""
        for field in REASONING_FIELDS:
            for message in (_answer(_SAID), _calling(self._arguments)):
                text = self._text(_USER, {**message, field: _THOUGHT})
                if _THOUGHT in text:
                    return field, text
        return None

    def block(self) -> Block | None:
        """How reasoning is marked off, as far as the template shows it."""
        if self._reasoned is not None:
            before, _, behind = self._reasoned[1].partition(_THOUGHT)
            opener, closer = _OPENER.search(before), _CLOSER.match(behind)
            # Tags that stand around content too are those of messages.
            if opener is None or closer is None or opener[1] in behind or closer[2] in behind[closer.end() :]:
                return None
            return Block(opener[1], len(opener[2]), closer[1] + closer[2], len(closer[3]))
        if (opener := _THINK.search(self.opening())) is not None:
            for end in (re.sub(r"^([<\[])", r"\1/", opener[1]), opener[1].replace("START", "END")):
                if end != opener[1] and end in self._source:
                    # As all models do that put a newline behind the first tag.
                    newlines = len(opener[2])
                    return Block(opener[1], newlines, "\n" * newlines + end, 2 * newlines)
        return None

    def opening(self) -> str:
        """A prompt for an answer, generation prompt included."""
        prompt = self._prompt(_USER, open_turn=True)
        return "" if prompt is None else prompt.text

    def header(self, opener: str) -> tuple[list[str], re.Pattern[str]]:
        """The control token behind which an answer begins, if one does, and what finds where in the text behind it.

        `opener` opens reasoning, and is no control token.
        """
        prompt = self._prompt(_USER, open_turn=True)
        text = "" if prompt is None else "".join(prompt.pieces[len(prompt.pieces) // 2 * 2 :])
        _, asked, header = text.rpartition(_ASKED)
        header = header.partition(opener)[0].rstrip()
        # The user's text may stand in front of it, in which only the last header begins an answer.
        found = ("(?s:.*)" if asked else r"\s*") + re.escape(header if asked else header.lstrip())
        return ([] if asked or prompt is None else prompt.pieces[1::2][-1:]), re.compile(found)

    def reasoning(self, left_open: Callable[[Prompt], bool]) -> Literal["opened", "written", "none"]:
        """Who begins a reasoning block, if the model has one. `left_open` says whether a prompt does."""
        opened = self._prompt(_USER, open_turn=True)
        if opened is not None and left_open(opened):
            return "opened"
        return "written" if self._reasoned is not None or "</think>" in self._source else "none"

    def ends(self) -> tuple[str, ...]:
        """The control token with which it closes an answer, if it does with one."""
        opened = self._prompt(_USER, _answer(_SAID), open_turn=True)
        for behind in ((), (_USER,)):
            prompt = self._prompt(_USER, _answer(_SAID), *behind)
            if prompt is None or _SAID not in prompt.text or prompt == opened:
                continue
            said = next(i for i, piece in enumerate(prompt.pieces) if _SAID in piece)
            if closers := prompt.pieces[said + 1 :: 2]:
                # Behind the last message there may be more than one, until the turn is over.
                return (closers[0 if behind else -1],)
        return ()

    def family(self, families: Iterable[Format]) -> tuple[Format, str] | None:
        """The family that best reads a call as the template writes it, and how that begins; None if none does."""
        best: tuple[tuple[bool, bool, int, bool], Format, str] | None = None
        for thought, said in ((_THOUGHT, _SAID), ("", _SAID), (_THOUGHT, ""), ("", ""), ("", None)):
            if thought and self._reasoned is None:
                continue
            reasoned = {self._reasoned[0]: thought} if self._reasoned and thought else {}
            for family in families:
                call_id = family.history_rules.call_id(_NAME, 0) if family.history_rules.call_id else _SHORT_ID
                message = _calling(self._arguments, call_id, content=said, **reasoned)
                wanted = Message(said or "", thought, (Call(call_id, _NAME, json.dumps(_ARGUMENTS)),))
                text, read = self._read(message, family)
                if [(call.name, call.arguments) for call in read.calls] != [(_NAME, wanted.calls[0].arguments)]:
                    continue
                score = (
                    read.reasoning != wanted.reasoning,
                    read.content.strip() != wanted.content,
                    len(read.defects),
                    not _writes(family, wanted, text),
                )
                if best is None or score < best[0]:
                    best = score, family, text
            if best is not None:
                return best[1], _marks(best[2])
        if self._shows_objects or self._shows_strings:
            return None
        # What it will not show in a history, it may still ask for.
        asked: tuple[int, Format, str] | None = None
        for family in families:
            markers = (*getattr(family._reader, "openers", ())[:1], *getattr(family._reader, "inner", ()))
            if len(markers) > (asked[0] if asked else 0) and all(marker.strip() in self._source for marker in markers):
                asked = len(markers), family, markers[0].strip()
        return asked and asked[1:]

    def reads_reasoning(self, family: Format) -> bool:
        """Whether `family` tells reasoning from content as the template writes them."""
        if self._reasoned is None:
            return False
        for message in (_answer(_SAID), _calling(self._arguments, content=_SAID), _calling(self._arguments)):
            text, read = self._read({**message, self._reasoned[0]: _THOUGHT}, family)
            if _THOUGHT in text:
                return (read.reasoning, read.content.rstrip()) == (_THOUGHT, message["content"])
        return False

    def _read(self, message: Mapping[str, Any], family: Format) -> tuple[str, Message]:
        """An answer as the template writes it behind its generation prompt, and what `family` reads in it.

        Without the control tokens that the family does not know, which no reader takes for text.
        """
        opened, said = self._prompt(_USER, open_turn=True), self._prompt(_USER, message)
        if opened is None or said is None:
            return "", Message()
        header = _shared(opened.text, said.text)
        goes_on = header == opened.text
        if not goes_on:
            header = _BEGUN_TAG.sub("", header)  # two tags may begin alike
        text = "".join(_behind(said, len(header), family._reader.controls))
        # The family's tags may be no control tokens of this model.
        begun = family.left_open(opened) or opened.text.rstrip().endswith(family._reader.think.strip())
        return text, family.parse(text, _TOOLS, thinking=goes_on and begun)


def _shared(a: str, b: str) -> str:
    """The beginning that two texts share."""
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _behind(prompt: Prompt, start: int, controls: Sequence[str]) -> Iterator[str]:
    """The pieces from `start` on; of its control tokens, those in `controls`."""
    at = 0
    for text, control in prompt.segments:
        if not control or text in controls:
            yield text[max(0, start - at) :]
        at += len(text)


def _marks(text: str) -> str:
    """What the template writes in front of a call's name."""
    before = text[: text.index(_NAME)]
    return re.split(f"{_ASKED}|{_THOUGHT}|{_SAID}", before)[-1].strip()


def _writes(family: Format, message: Message, text: str) -> bool:
    """Whether `family` writes `message` as in `text`."""
    *said, _ = family.write(message, thinking=bool(message.reasoning)).pieces  # all but what ends the turn
    return "".join(said) in text


#: A tag, and the newlines that belong to it.
_OPENER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])(\n*)\Z")
_CLOSER = re.compile(r"(\n*)(<[^<>\s]+>|\[/[A-Z_]+\])(\n*)")
_THINK = re.compile(r"(<[^<>\s]*think[^<>\s]*>|\[THINK\])(\n*)\Z", re.IGNORECASE)
_BEGUN_TAG = re.compile(r"[<\[][^<>\[\]\s]*\Z")
_AS_JSON = re.compile(r"""type['"]?\s*:\s*['"]?text""")


def _nine_digits(name: str, number: int) -> str:
    """An id such as Mistral's templates ask for."""
    return f"{number:09}"
