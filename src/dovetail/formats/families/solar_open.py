"""Upstage Solar Open's calls: `solar_open`, the id and the name of each before its arguments. On one line:

    <|think|>Paris, then.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>
    get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|calls|>

The prompt ends in `<|begin|>assistant`. `<|end|><|begin|>assistant` stands between two messages of one turn: after
reasoning, and after content that calls follow. A turn ends with `<|calls|>` or `<|flush|>`, although the template
writes `<|end|>` after content. Source: the model's chat template, and for `<|flush|>` its `generation_config.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.events import Call, Message
from dovetail.formats.answers.answer_grammar import BLANKS, Asked
from dovetail.formats.base import ReasoningBlock
from dovetail.formats.declared.declared import Declaration, DeclaredFormat, markup
from dovetail.formats.declared.declared_answers import DeclaredAnswers
from dovetail.formats.declared.named_calls import NamedCalls
from dovetail.grammar import Choice, Concat, FreeText, Grammar, Maybe, Node
from dovetail.reading.named_calls import NamedCallReader
from dovetail.tokens import Prompt, Segment

THINK, BEGIN, END = "<|think|>", "<|begin|>", "<|end|>"
CONTENT, ROLE = "<|content|>", "assistant"
#: What stands between two messages of a turn.
NEXT = END + BEGIN + ROLE
SECTION = "<|tool_calls|>{calls}"
CALL = "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


class SolarOpenReader(NamedCallReader):
    around_messages = (BEGIN, END, CONTENT, NEXT)

    def _stray_marker(self, literal: str) -> None:
        if literal not in (END, NEXT):  # they end content too
            super()._stray_marker(literal)


class SolarOpenAnswers(DeclaredAnswers):
    def answer(self, asked: Asked) -> Grammar:
        reasoning, calls = self.reasoning(asked.thinking), self.calls(asked.tools, asked.parallel)
        if asked.required:
            return Grammar(Concat((*reasoning, calls)))
        said, end = super().answer_block(asked.text), self.mark(END)
        before = super().answer_block(FreeText() if asked.silent else Maybe(BLANKS))
        answers: list[Node] = [calls]
        for content in (before, said):  # what comes before calls need not say anything
            answers += [Concat((content, calls)), Concat((content, end, self.mark(BEGIN + ROLE), calls))]
        answers += [said, Concat((said, end)), *((Concat(()),) if asked.silent else ())]
        return Grammar(Concat((*reasoning, Choice(tuple(answers)))))

    def answer_block(self, content: Node) -> Node:
        return Concat((super().answer_block(content), Maybe(self.mark(END))))


@dataclass(frozen=True)
class NextMessage(NamedCalls):
    """Calls in a message of their own, after the message of the content."""

    def segments(
        self, calls: Sequence[Call], controls: tuple[str, ...], *, after_content: bool, index: str | None = None
    ) -> Iterator[Segment]:
        if calls and after_content:
            yield from markup(NEXT, controls)
        yield from super().segments(calls, controls, after_content=False, index=index)


class SolarOpen(DeclaredFormat):
    name = "solar_open"
    reasoning: ReasoningBlock = "written"
    controls = (
        THINK,
        BEGIN,
        END,
        CONTENT,
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    )
    end_of_turn = ("<|flush|>", "<|calls|>")
    end_after_calls = "<|calls|>"
    other_ends = ("<|endoftext|>",)
    inside_turns = (END, BEGIN, CONTENT)
    reasoning_block = THINK + "{reasoning}" + NEXT
    answer = CONTENT + "{content}"
    calls = NamedCalls(SECTION, CALL)
    other_calls = (NextMessage(SECTION, CALL),)
    script = SolarOpenReader
    _answers = SolarOpenAnswers

    def left_open(self, prompt: Prompt) -> bool:
        return next((token for token in reversed(prompt.pieces[1::2]) if token in (THINK, END)), "") == THINK

    @property
    def reasoning_tags(self) -> None:
        """None: reasoning is a message, and its end may be the end of another message."""

    @property
    def _reasoning_ends(self) -> tuple[str, str]:
        return THINK, NEXT

    def _segments(self, message: Message, thinking: bool, calls: Declaration, index: str | None) -> Iterator[Segment]:
        *segments, end = super()._segments(message, thinking, calls, index)
        yield from segments
        if message.content and not message.calls:
            yield Segment(END, True)
        yield end
