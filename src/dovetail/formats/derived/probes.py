"""`Probe`: finds out from a chat template how its model answers and what its histories look like.

It renders small conversations and searches the prompts for their words. This happens once, when a `JinjaFormat` is
made. A conversation that the template refuses counts as one of which it shows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dovetail.errors import DovetailError
from dovetail.events import Call, Message
from dovetail.formats.base import Format, as_sent
from dovetail.formats.declarations import sorted_deeply
from dovetail.formats.derived.proof import segments_from
from dovetail.formats.prompts.history import REASONING_FIELDS, HistoryRules
from dovetail.formats.prompts.turns import Alternation, Place
from dovetail.tokens import Prompt, Segment

#: Renders messages and tools, with or without a generation prompt. Raises a `DovetailError` if the template refuses.
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], Prompt]

#: Words of the probe's conversations. No template writes them itself, and no filter changes them.
_QUESTION, _ANSWER, _MORE, _REASONING, _RESULT, _PLACE = (
    "Wquestion",
    "Wanswer",
    "Wmore",
    "Wreasoning",
    "Wresult",
    "Wplace",
)
_NAME, _KEY = "find_it", "place"
#: Keys whose order tells whether a template sorts them, and how.
_KEYS = ("wbranch", "Wcountry", "warea")
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
_USER = {"role": "user", "content": _QUESTION}
_PICTURE = {"type": "image"}
_SHORT_ID, _LONG_ID = "call00001", "call_0123456789abcdef01234567"


def _answer(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _calling(arguments: Any, call_id: str = _SHORT_ID, **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def _result(content: Any = _RESULT, call_id: str = _SHORT_ID) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": content}


_ROLES = ("user", "system", "assistant", "tool")


def _conversation(role: str, content: Any, arguments: Any) -> list[dict[str, Any]]:
    """A conversation with `content` in a message of `role`."""
    messages: dict[str, list[dict[str, Any]]] = {
        "user": [{"role": "user", "content": content}],
        "system": [{"role": "system", "content": content}, _USER],
        "assistant": [_USER, _answer(content), _USER],
        "tool": [_USER, _calling(arguments), _result(content)],
    }
    return messages[role]


class Block(NamedTuple):
    """The markup of a reasoning block.

    `think`, `think_end`: the tags. Newlines before the closing tag are part of `think_end`.
    `after_think`, `after_think_end`: how many newlines after each tag are markup.
    """

    think: str
    after_think: int
    think_end: str
    after_think_end: int


class _Answer(NamedTuple):
    """An answer: the prompt `before` it, whether it goes on after all of that, and its segments."""

    before: Prompt
    goes_on: bool
    segments: tuple[Segment, ...]


class Probe:
    """Answers questions about one template, whose text is `source`."""

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._source = source
        self._prompts: dict[str, Prompt | None] = {}
        self._answers: dict[str, _Answer | None] = {}
        self._shows_objects, self._shows_strings = map(self._shows_arguments, (_ARGUMENTS, json.dumps(_ARGUMENTS)))
        takes_objects = self._shows_objects or not self._shows_strings
        self._arguments: Any = _ARGUMENTS if takes_objects else json.dumps(_ARGUMENTS)
        self._reasoned = self._reasoning()

    def _prompt(self, *messages: Mapping[str, Any], open_turn: bool = False) -> Prompt | None:
        """The prompt with a tool, or without one if the template refuses that; None if it refuses both."""
        key = json.dumps((messages, open_turn))
        if key not in self._prompts:
            self._prompts[key] = None
            for tools in (_TOOLS, None):
                with contextlib.suppress(DovetailError):
                    self._prompts[key] = self._render(messages, tools, open_turn)
                    break
        return self._prompts[key]

    def _text(self, *messages: Mapping[str, Any]) -> str:
        prompt = self._prompt(*messages)
        return "" if prompt is None else prompt.text

    # -- histories ----------------------------------------------------------------------------------------------------

    def history_rules(self, family: Format) -> HistoryRules:
        """What the template needs of a history. If it accepts any call ids, `family` has its own."""
        return HistoryRules(
            call_id=_nine_digits if self._refuses_long_ids() else family.history_rules.call_id,
            parts=self._parts(),
            arguments="object" if self._shows_objects and not self._shows_strings else "any",
            null_beside_calls=self._null_beside_calls(),
            developer=self._knows_developer(),
            system=self._system_place(),
            alternation=self._alternation(),
            needs_user=self._needs_user(),
            one_call=self._refuses_two_calls(),
            reasoning_field=self._reasoned[0] if self._reasoned else REASONING_FIELDS[0],
            results_in_order=self._hides_whose_result(family.history_rules.call_id or _nine_digits),
            hides_calls=self._hides(_PLACE),
            hides_results=self._hides(_RESULT),
            pictures=self._picture_roles(),
        )

    def _picture_roles(self) -> frozenset[str] | None:
        if (place := self.picture()) is None:
            return None
        return frozenset(role for role in _ROLES if role == "user" or self.picture(role) == place)

    def _hides(self, word: str) -> bool:
        """Whether the template accepts calls with results, and never shows `word` of them in any form."""
        prompts = (
            self._prompt(_USER, _calling(arguments, content=content), _result(result), *more)
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS))
            for content in ("", None, _ANSWER)
            for result in (_RESULT, [{"type": "text", "text": _RESULT}])
            for more in ((), (_USER,))
        )
        accepted = False
        for prompt in prompts:
            if prompt is not None and word in prompt.text:
                return False
            accepted = accepted or prompt is not None
        return accepted

    def _shows_arguments(self, arguments: Any) -> bool:
        """Whether the template shows a call's arguments.

        Not encoded as a JSON string, not in Python's syntax, and not with brackets of its own around the JSON.
        """
        texts = (
            self._text(_USER, _calling(arguments, content=content), *more)
            for content in ("", None)
            for more in ((), (_result(),))
        )
        other = f'\\"{_KEY}', f"'{_KEY}': '{_PLACE}", f'{{{{"{_KEY}'
        return any(_PLACE in text and not any(form in text for form in other) for text in texts)

    def key_order(self) -> Callable[[Any], Any]:
        """What orders the keys of a schema as the template orders the keys of a call's arguments."""
        keys = dict.fromkeys(_KEYS, _PLACE)
        text = self._text(_USER, _calling(keys if isinstance(self._arguments, dict) else json.dumps(keys)))
        orders: tuple[Callable[[Any], Any], ...] = (
            as_sent,
            sorted_deeply,
            functools.partial(sorted_deeply, by=str.lower),
        )
        return next((order for order in orders if _in_order(text, *order(keys))), as_sent)

    def _parts(self) -> Literal["any", "text", "parts"]:
        """Whether content must be text or parts: which of the two the template shows, in each role."""
        as_text, as_parts = _ANSWER + _MORE, [{"type": "text", "text": text} for text in (_ANSWER, _MORE)]
        needed: Literal["any", "text"] = "any"
        for role in _ROLES:
            text, parts = (self._shows_content(role, content) for content in (as_text, as_parts))
            if role == "user" and parts and not text:
                return "parts"
            if text and not parts:
                needed = "text"
        return needed

    def picture(self, role: str = "user") -> str | None:
        """The control token that stands for a picture in messages of `role`; None if the template shows none there.

        Where the template writes several control tokens for a picture, the one in the middle stands for it, as in
        `<|vision_start|><|image_pad|><|vision_end|>`.
        """
        prompts = [
            self._prompt(*_conversation(role, [{"type": "text", "text": _ANSWER}, *pictures], self._arguments))
            for pictures in ([], [_PICTURE], [_PICTURE, _PICTURE])
        ]
        shown = [prompt.pieces[1::2] for prompt in prompts if prompt is not None and _ANSWER in prompt.text]
        if len(shown) < len(prompts):
            return None
        without, one, two = shown
        written = [control for control in one if control not in without]
        place = written[len(written) // 2] if written else None
        return place if place is not None and (one.count(place), two.count(place)) == (1, 2) else None

    def _shows_content(self, role: str, content: Any) -> bool:
        text = self._text(*_conversation(role, content, self._arguments))
        return _ANSWER in text and _MORE in text and not _AS_JSON.search(text)

    def _knows_developer(self) -> bool:
        """Whether the template knows the developer role, and does not just print the name of any role."""
        developer, system = (
            _ANSWER in self._text({"role": role, "content": _ANSWER}, _USER) for role in ("developer", "system")
        )
        return developer and ("developer" in self._source or not system)

    def _system_place(self) -> Place:
        """Where the template shows system messages, and opens an answer after them."""
        system = {"role": "system", "content": _MORE}
        between = self._text(_USER, _answer(_ANSWER), system, {"role": "user", "content": _RESULT})
        last = self._prompt(_USER, system, open_turn=True)
        header = self.opening().rpartition(_QUESTION)[2]
        shown = _in_order(between, _QUESTION, _ANSWER, _MORE, _RESULT)
        if shown and last is not None and _in_order(last.text, _QUESTION, _MORE) and last.text.endswith(header):
            return "anywhere"
        two = self._text({"role": "system", "content": _ANSWER}, system, _USER)
        return "first" if _in_order(two, _ANSWER, _MORE, _QUESTION) else "one"

    def shows_system(self) -> bool:
        """Whether the template shows a system message at the beginning."""
        contents = (_MORE, [{"type": "text", "text": _MORE}])
        return any(_MORE in self._text({"role": "system", "content": content}, _USER) for content in contents)

    def knows_tools(self) -> bool:
        """Whether the template shows a request's tools, or anything of calls."""
        calls = (
            (self._text(_USER, _calling(arguments, content=content)), self._text(_USER, _answer(content)))
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS))
            for content in ("", _ANSWER)
        )
        return _NAME in self._text(_USER) or any(called not in ("", without) for called, without in calls)

    def _takes(self, *messages: Mapping[str, Any]) -> bool:
        return self._prompt(*messages) is not None

    def _alternation(self) -> Alternation:
        """Which turns have to alternate: any other conversation is refused."""
        answer, called = _answer(_ANSWER), (_USER, _calling(self._arguments), _result())
        others = ((_USER, _USER), (_USER, answer, answer, _USER), (answer, _USER))
        if any(self._takes(*messages) for messages in others) or not self._takes(_USER, answer, _USER):
            return "any"
        return "spoken" if self._takes(*called, answer, _USER) and not self._takes(*called, _USER) else "neighbours"

    def _needs_user(self) -> bool:
        """Whether the template refuses conversations without a message of the user, and an empty one will do."""
        system, answer, empty = {"role": "system", "content": _MORE}, _answer(_ANSWER), {"role": "user", "content": ""}
        without = ((answer,), (system,), (_calling(self._arguments), _result()))
        return not any(self._takes(*each) for each in without) and self._takes(system, empty, answer)

    def _refuses_two_calls(self) -> bool:
        """Whether the template refuses two calls in one message, and takes them in two."""
        first, second = (_calling(self._arguments, call_id) for call_id in (_SHORT_ID, "call00002"))
        one, other = _result(), _result(_MORE, "call00002")
        both = {**first, "tool_calls": [*first["tool_calls"], *second["tool_calls"]]}
        return not self._takes(_USER, both, one, other) and self._takes(_USER, first, one, second, other)

    def _refuses_long_ids(self) -> bool:
        short, long = (
            _PLACE in self._text(_USER, _calling(self._arguments, call_id), _result(call_id=call_id))
            for call_id in (_SHORT_ID, _LONG_ID)
        )
        return short and not long

    def _null_beside_calls(self) -> bool:
        empty, null = (
            _PLACE in self._text(_USER, _calling(self._arguments, content=content)) for content in ("", None)
        )
        return null and not empty

    def _hides_whose_result(self, call_id: Callable[[str, int], str]) -> bool:
        """Whether the prompt stays the same if two results answer each other's calls."""
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

    # -- answers ------------------------------------------------------------------------------------------------------

    def _reasoning(self) -> tuple[str, str] | None:
        """The field from which the template reads reasoning, and a prompt that shows the reasoning."""
        for field in REASONING_FIELDS:
            for message in (_answer(_ANSWER), _calling(self._arguments)):
                text = self._text(_USER, {**message, field: _REASONING})
                if _REASONING in text:
                    return field, text
        return None

    def block(self) -> Block | None:
        """The markup of reasoning; None if the template does not show it."""
        if self._reasoned is not None:
            before, _, after = self._reasoned[1].partition(_REASONING)
            opener, closer = _OPENER.search(before), _CLOSER.match(after)
            # Tags that occur again mark messages and not reasoning.
            if opener is None or closer is None or opener[1] in after or closer[2] in after[closer.end() :]:
                return None
            return Block(opener[1], len(opener[2]), closer[1] + closer[2], len(closer[3]))
        if (opener := _THINK.search(self.opening())) is not None:
            for end in (re.sub(r"^([<\[])", r"\1/", opener[1]), opener[1].replace("START", "END")):
                if end != opener[1] and end in self._source:
                    # All models with a newline after the opening tag have one before and two after the closing tag.
                    newlines = len(opener[2])
                    return Block(opener[1], newlines, "\n" * newlines + end, 2 * newlines)
        return None

    def opening(self) -> str:
        """The text of a prompt with a generation prompt."""
        prompt = self._prompt(_USER, open_turn=True)
        return "" if prompt is None else prompt.text

    def header(self, opener: str) -> tuple[list[str], re.Pattern[str]]:
        """Where an answer begins: the control token before it, if there is one, and a regex for the text after that.

        `opener` is the tag that opens reasoning, as text.
        """
        prompt = self._prompt(_USER, open_turn=True)
        text = "" if prompt is None else "".join(prompt.pieces[len(prompt.pieces) // 2 * 2 :])
        _, question, header = text.rpartition(_QUESTION)
        header = header.partition(opener)[0].rstrip()
        # If no control token separates the user's text from the header, the last header in the text begins the answer.
        regex = ("(?s:.*)" if question else r"\s*") + re.escape(header if question else header.lstrip())
        return ([] if question or prompt is None else prompt.pieces[1::2][-1:]), re.compile(regex)

    def reasoning(self, left_open: Callable[[Prompt], bool]) -> Literal["opened", "written", "none"]:
        """Who opens the reasoning block. `left_open` tells whether a prompt leaves one open."""
        opened = self._prompt(_USER, open_turn=True)
        if opened is not None and left_open(opened):
            return "opened"
        return "written" if self._reasoned is not None or "</think>" in self._source else "none"

    def ends(self, inside: Collection[str] = ()) -> tuple[str, ...]:
        """The control token that ends an answer, if there is one. `inside`: control tokens inside of answers."""
        opened = self._prompt(_USER, _answer(_ANSWER), open_turn=True)
        for next_turn in ((), (_USER,)):
            prompt = self._prompt(_USER, _answer(_ANSWER), *next_turn)
            if prompt is None or _ANSWER not in prompt.text or prompt == opened:
                continue
            answer = next(i for i, piece in enumerate(prompt.pieces) if _ANSWER in piece)
            if closers := [piece for piece in prompt.pieces[answer + 1 :: 2] if piece not in inside]:
                # After the last message of a prompt there may be several; the last one ends the turn.
                return (closers[0 if next_turn else -1],)
        return ()

    def family(self, families: Iterable[Format]) -> tuple[Format, str] | None:
        """The family that reads the template's calls best, and the text before a call's name; None if none does."""
        best: tuple[tuple[bool, bool, int, bool, bool, bool], Format, str] | None = None
        for reasoning, content in ((_REASONING, _ANSWER), ("", _ANSWER), (_REASONING, ""), ("", ""), ("", None)):
            if reasoning and self._reasoned is None:
                continue
            fields = {self._reasoned[0]: reasoning} if self._reasoned and reasoning else {}
            for family in families:
                call_id = family.history_rules.call_id(_NAME, 0) if family.history_rules.call_id else _SHORT_ID
                message = _calling(self._arguments, call_id, content=content, **fields)
                expected = Message(content or "", reasoning, (Call(call_id, _NAME, json.dumps(_ARGUMENTS)),))
                text, read = self._read(message, family)
                if not _calls_it(read):
                    continue
                score = (
                    read.reasoning != expected.reasoning,
                    read.content.strip() != expected.content,
                    len(read.defects),
                    not _writes(family, expected, text),
                    not _writes(family, Message(_ANSWER), self._read(_answer(_ANSWER), family)[0]),
                    not any(opener.strip() in self._source for opener in getattr(family.reader_type, "openers", ())),
                )
                if best is None or score < best[0]:
                    best = score, family, text
            if best is not None:
                return best[1], _call_opening(best[2], best[1].reader_type.think_end.strip())
        if self._shows_objects or self._shows_strings:
            return None
        # A template that shows no calls of a history may still name a family's markers, to tell the model how to call.
        named: tuple[int, Format, str] | None = None
        for family in families:
            reader = family.reader_type
            others = {end for _, end, _ in getattr(reader, "other_sections", {}).values()}
            others.update(getattr(reader, "other_marks", ()))
            inner = (marker for marker in getattr(reader, "inner", ()) if marker not in others)
            markers = (*getattr(reader, "openers", ())[:1], *inner)
            if len(markers) > (named[0] if named else 0) and all(marker.strip() in self._source for marker in markers):
                named = len(markers), family, markers[0].strip()
        return named and named[1:]

    def reads_reasoning(self, family: Format) -> bool:
        """Whether `family` separates reasoning from content in answers that the template writes."""
        if self._reasoned is None:
            return False
        for message in (_answer(_ANSWER), _calling(self._arguments, content=_ANSWER), _calling(self._arguments)):
            text, read = self._read({**message, self._reasoned[0]: _REASONING}, family)
            if _REASONING in text:
                return (read.reasoning, read.content.rstrip()) == (_REASONING, message["content"])
        return False

    def _read(self, message: Mapping[str, Any], family: Format) -> tuple[str, Message]:
        """The answer that the template writes after its generation prompt, and what `family` reads in it.

        Control tokens that the family does not know are left out, because no reader takes them for text.
        """
        answer = self._answered(message)
        if answer is None:
            return "", Message()
        controls = family.reader_type.controls
        text = "".join(piece for piece, control in answer.segments if not control or piece in controls)
        left_open = answer.goes_on and (
            # The family's tags may be text in this model.
            family.left_open(answer.before) or answer.before.text.rstrip().endswith(family.reader_type.think.strip())
        )
        return text, family.parse(text, _TOOLS, thinking=left_open, bare_calls=False)

    def _answered(self, message: Mapping[str, Any]) -> _Answer | None:
        """The answer in the prompt; None if the template refuses it. All families are asked about the same answers."""
        key = json.dumps(message)
        if key not in self._answers:
            opened, answered = self._prompt(_USER, open_turn=True), self._prompt(_USER, message)
            self._answers[key] = None if opened is None or answered is None else _cut_out(opened, answered)
        return self._answers[key]


def _calls_it(message: Message) -> bool:
    """Whether `message` is the probes' one call, however its arguments are laid out."""
    if [call.name for call in message.calls] != [_NAME]:
        return False
    try:
        return bool(json.loads(message.calls[0].arguments) == _ARGUMENTS)
    except ValueError:
        return False


def _in_order(text: str, *words: str) -> bool:
    """Whether `text` has all `words`, in this order."""
    places = [text.find(word) for word in words]
    return places[0] >= 0 and places == sorted(places)


def _common_prefix(a: str, b: str) -> str:
    return a[: next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _cut_out(before: Prompt, answered: Prompt) -> _Answer:
    header = _common_prefix(before.text, answered.text)
    goes_on = header == before.text
    if not goes_on:
        header = _PARTIAL_TAG.sub("", header)  # two different tags may begin alike
    return _Answer(before, goes_on, tuple(segments_from(answered, len(header))))


def _call_opening(text: str, think_end: str) -> str:
    """The text that the template writes before a call's name."""
    before = text[: text.index(_NAME)]
    return re.split(f"{_QUESTION}|{_REASONING}|{_ANSWER}|{re.escape(think_end)}", before)[-1].strip()


def _writes(family: Format, message: Message, text: str) -> bool:
    """Whether `text` contains `message` as `family` writes it."""
    *pieces, _ = family.write(message, thinking=bool(message.reasoning)).pieces  # without the end of the turn
    return "".join(pieces) in text


#: A tag with the newlines that belong to it.
_OPENER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])(\n*)\Z")
_CLOSER = re.compile(r"(\n*)(<[^<>\s]+>|\[/[A-Z_]+\])(\n*)")
_THINK = re.compile(r"(<[^<>\s]*think[^<>\s]*>|\[THINK\])(\n*)\Z", re.IGNORECASE)
_PARTIAL_TAG = re.compile(r"[<\[][^<>\[\]\s]*\Z")
_AS_JSON = re.compile(r"""type['"]?\s*:\s*['"]?text""")


def _nine_digits(name: str, number: int) -> str:
    """A call id as Mistral's templates require it."""
    return f"{number:09}"
