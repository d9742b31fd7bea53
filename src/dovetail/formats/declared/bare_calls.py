"""`BareAnswers`: the grammar of families whose calls are JSON that needs no marker (`reading.bare_calls`)."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.conversation import Tool
from dovetail.formats.answers import call_envelope, plain_text
from dovetail.formats.answers.answer_grammar import TEXT_AFTER_CALLS, AnswerGrammar, Asked
from dovetail.formats.answers.input_grammar import ClientGrammar
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Maybe, Node, Regex, Repeat
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_objects import Keys
from dovetail.reading.prose import MOST_SPACE

_SPACE = rf"[ \t\r\n]{{0,{MOST_SPACE}}}"
_BLANK = Regex(rf"[ \t\r\n]{{1,{MOST_SPACE}}}")
#: Some models write a type before the name, or OpenAI's key for the arguments.
_BEFORE_NAME = Regex(rf'\{{{_SPACE}(?:"type"{_SPACE}:{_SPACE}"function"{_SPACE},{_SPACE})?"name"{_SPACE}:{_SPACE}')
_BEFORE_ARGUMENTS = Regex(rf'{_SPACE},{_SPACE}"(?:parameters|arguments)"{_SPACE}:{_SPACE}')
_CALL_END = Regex(rf"{_SPACE}\}}")
_BETWEEN = Maybe(Regex(rf"{_SPACE}[;,]{_SPACE}|[ \t\r\n]{{1,{MOST_SPACE}}}"))
#: The first call of a list is told from text by its first terminal as a whole.
_BEFORE_FIRST_NAME = Regex(rf"\[{_SPACE}{_BEFORE_NAME.regex}")
_COMMA, _LIST_END = Regex(rf"{_SPACE},{_SPACE}"), Regex(rf"{_SPACE}\]")


class BareAnswers(plain_text.PlainTextAnswers):
    """Calls are the whole answer, or follow text and a marker, which is the reader's first opener.

    Other text does not begin like a call.
    """

    #: Whether calls may come without the marker.
    bare = True
    #: What may end calls after the marker.
    end = ""

    def answer(self, asked: Asked) -> Grammar:
        text = self._text()
        marker = Concat((*(() if asked.required else (plain_text.perhaps(text),)), *self._marker()))
        before = Maybe(marker if asked.required else Choice((marker, _BLANK))) if self.bare else marker
        calls = Concat((before, self.calls(asked.tools, asked.parallel), *self._end()))
        said = plain_text.perhaps(text) if asked.silent else text
        answer = calls if asked.required else Choice((calls, said))
        return Grammar(Concat((*self.reasoning(asked.thinking), answer)))

    def calls(self, tools: Mapping[int, Tool], parallel: bool) -> Node:
        called = []
        for index, tool in tools.items():
            arguments = self.slots(index, tool)[call_envelope.ARGUMENTS]
            called.append(Concat((ExactText(f'"{tool.name}"'), _BEFORE_ARGUMENTS, arguments)))
        first, call = (
            Concat((before, Choice(tuple(called)), _CALL_END))
            for before in (_BEFORE_FIRST_NAME if self._in_list else _BEFORE_NAME, _BEFORE_NAME)
        )
        more = (Repeat(Concat((_COMMA if self._in_list else _BETWEEN, call)), 0),) if parallel else ()
        # White space may come before the model decides whether another call does.
        end = (_LIST_END,) if self._in_list else (Maybe(_BLANK),) if parallel else ()
        return Concat((first, *more, *end))

    def after_calls(self) -> Node | None:
        return None if self._in_list else TEXT_AFTER_CALLS

    def custom_input(self, grammar: ClientGrammar) -> Node:
        return grammar.in_json()

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        marked = None if calls is None else Concat((*self._marker(), calls, *self._end()))
        return AnswerGrammar.calls_or_structured(self, marked, content, thinking)

    def marks(self) -> list[str]:
        return [*super().marks(), *self.text_openers]

    @property
    def _in_list(self) -> bool:
        return issubclass(self.reader, JsonCallReader) and self.reader.in_list

    def _marker(self) -> tuple[Node, ...]:
        opener = self.reader.openers[0].strip()
        if opener.endswith("["):  # the bracket is a part of it
            return (self.mark(opener.removesuffix("[")),)
        return self.mark(opener), Maybe(_BLANK)

    def _end(self) -> tuple[Node, ...]:
        return (Maybe(self.mark(self.end)),) if self.end else ()

    def _text(self) -> Node:
        """Content that the reader does not take for a call."""
        marks = self.marks()
        stops = plain_text.stops(marks)
        tags = plain_text.pieces(marks, stops)
        object_ = rf"\{{{plain_text.after_blanks(stops, Keys().quoted())}?"
        begun = [Regex(object_)]
        if self._in_list:
            blanks = f"[{plain_text.BLANK}]*"
            begun.append(Regex(rf"\[(?:{plain_text.after_blanks(stops, '{')}|{blanks}{object_})?"))
        first = (*begun, *tags, plain_text.words(stops, "{[" if self._in_list else "{"))
        return plain_text.text(first, tags)
