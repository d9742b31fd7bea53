"""Functionary's calls: `functionary` (v3.2), in messages to recipients.

    all
    Let me look.>>>get_weather
    {"city": "Paris"}

`>>>` begins a message. The prompt ends in one, so that an answer begins with a recipient. Content goes to `all`.
Source: the model's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.conversation import Tool
from dovetail.errors import InvalidRequest
from dovetail.events import INVISIBLE, Content, Message, Reasoning
from dovetail.formats.answers import call_envelope
from dovetail.formats.answers.answer_grammar import TEXT_AFTER_CALLS, AnswerGrammar, Asked
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.formats.base import Format, ReasoningBlock
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Node, Regex, Repeat
from dovetail.reading import CallReader, Script
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.mentions import Prose
from dovetail.reading.prose import MOST_SPACE
from dovetail.tokens import Prompt, Segment

#: What begins a message, and the recipient of content.
NEXT, ALL = ">>>", "all"
END = "<|eot_id|>"
#: Text in which `>>>` begins no message, because there is a blank after it.
_ARROWS = r">{1,2}[^>]|>{3,}[ \t\r\n]"
_PIECES = rf"(?:[^>]|{_ARROWS})*"
_TEXT, _TEXT_BEFORE_CALLS = Regex(_PIECES + ">{0,2}"), Regex(_PIECES + NEXT)
_VISIBLE_TEXT = Regex(rf"[{INVISIBLE}]*(?:(?:[^>{INVISIBLE}]|{_ARROWS}){_PIECES}>{{0,2}}|>{{1,2}})")
#: How many characters longer than the longest tool's name a recipient may be.
_MORE = 16


class FunctionaryReader(CallReader):
    """Reads messages. In content, `>>>` begins one only before the name of one of the tools, without a blank."""

    unmarked = r"^\s*[^\s{]+\s*[\n{]"  # the prompt has begun the first message
    controls = (END,)
    begin_of_text = ("<|begin_of_text|>",)
    ends = (END,)
    openers = text_openers = (NEXT,)

    def _content_begins(self) -> Script[None]:
        yield from self._messages("")

    def _section_or_mention(self, opener: str, kind: Prose) -> Script[bool]:
        if kind is Reasoning:
            self._show(kind, opener)
            return False
        yield from self._messages(opener)
        self._shown = ""
        return True

    def _messages(self, opener: str | None) -> Script[None]:
        """Read calls, from a message's recipient on, and the recipient of the content after them."""
        begins = not opener  # whether any recipient may come, with blanks around it
        doubled = 0
        space = (yield from self._skip(WHITESPACE, MOST_SPACE)) if begins else ""
        if begins and (yield from self._next_is(NEXT)) is not None:
            opener, doubled = NEXT, 1
        while opener is not None:
            # Of more than three `>`, the last three begin the message.
            before = (yield from self._skip(">", MOST_SPACE)) if opener else ""
            text, stop = yield from self._read_up_to(self._longest_name + _MORE, "\n", "{", NEXT, *self.ends)
            is_content = text.strip() == ALL and stop == "\n"
            if stop == "\n":
                text += stop
            elif stop is not None:
                self._unread()
            is_call = not is_content and (yield from self._is_call(text, stop, certain=begins))
            if not (is_content or is_call):
                if not opener and text.strip():
                    self._defect("text_outside_message")
                if not_read := space + opener + before + text:
                    self._show(Content, not_read)
                return
            for _ in range(doubled + len(before) // len(NEXT)):
                self._stray_marker(NEXT)
            if before := before[: len(before) % len(NEXT)]:
                self._events.append(Content(before))
            if is_content:
                return
            opener = yield from self._call(text.strip(), stop)
            begins, doubled, space = True, 0, ""

    def _is_call(self, text: str, stop: str | None, *, certain: bool) -> Script[bool]:
        """Whether a message to `text`, before `stop`, is a call. `certain`: whether it need not name a tool."""
        name = text.strip()
        if not self._options.calls or not stop or stop not in "\n{" or not (certain or text.startswith(name)):
            return False
        if self._tool(name) in self._options.tools:
            return True
        one_word = name.isprintable() and " " not in name and stop == "\n"
        return certain and bool(name) and one_word and (yield from self._peek()) == "{"

    def _call(self, name: str, stop: str | None) -> Script[str | None]:
        """Read a call's arguments. Returns the marker of the next message; None if none comes."""
        self._open_call(name)
        if stop == "{":
            self._defect("missing_separator", self._id)
        marker = yield from self._json_arguments(NEXT, *self.ends)
        self._close_call(marker, NEXT, *self.ends, None)
        if marker in self.ends:
            self._unread()
        return marker if marker == NEXT else None


class FunctionaryAnswers(AnswerGrammar):
    def answer(self, asked: Asked) -> Grammar:
        calls = self.calls(asked.tools, asked.parallel)
        if asked.required:
            return Grammar(calls)
        header, text = ExactText(f"{ALL}\n"), _TEXT if asked.silent else _VISIBLE_TEXT
        return Grammar(Choice((calls, Concat((header, text)), Concat((header, _TEXT_BEFORE_CALLS, calls)))))

    def content_only(self, asked: Asked) -> Grammar:
        return Grammar(Concat((ExactText(f"{ALL}\n"), asked.text)))

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        message = Concat((ExactText(f"{ALL}\n"), content)) if content else None
        return Grammar(Choice(tuple(node for node in (calls, message) if node)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            if tool.name == ALL:
                where = tool.name_field
                raise InvalidRequest(f"{where} {ALL!r} is the recipient of content in this model", param=where)
            arguments = self.slots(index, tool)[call_envelope.ARGUMENTS]
            called.append(Concat((ExactText(f"{tool.name}\n"), arguments)))
        call = Choice(tuple(called))
        return Concat((call, Repeat(Concat((ExactText(NEXT), call)), 0))) if parallel else call

    def after_calls(self) -> Node:
        return Concat((ExactText(f"{NEXT}{ALL}\n"), TEXT_AFTER_CALLS))

    def custom_input(self, grammar: ClientGrammar) -> Node:
        return grammar.in_json()


class Functionary(Format):
    name = "functionary"
    reasoning: ReasoningBlock = "none"
    end_of_turn = (END,)
    reader_type = FunctionaryReader
    _answers = FunctionaryAnswers

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        messages = [f"{ALL}\n{message.content}"] if message.content or not message.calls else []
        messages += [f"{call.name}\n{call.arguments}" for call in message.calls]
        return Prompt([Segment(NEXT.join(messages), False), Segment(END, True)])
