"""Mistral's language: `mistral`.

Newer models write `[TOOL_CALLS]NAME[ARGS]{…}` for each call, perhaps with `[CALL_ID]ID` after the name, and reason in
`[THINK]…[/THINK]`. Older ones write one list, `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`. Source: the models' own
chat templates and tokenizers.
"""

from __future__ import annotations

from dovetail.events import Message
from dovetail.formats.base import EngineParsers, ReasoningBlock
from dovetail.formats.declared.declared import Declaration, DeclaredFormat, JsonCalls
from dovetail.grammar import ControlToken
from dovetail.reading import Script
from dovetail.reading.calls import LONGEST_HEADER
from dovetail.reading.json_calls import JsonCallReader
from dovetail.reading.json_objects import CALL_ID_TEXT
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.reader import Abandoned
from dovetail.tokens import Prompt

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralReader(JsonCallReader):
    inner = (CALL_ID, ARGUMENTS)
    other_marks = dict.fromkeys(("[TOOL_CALL]", "[TOOLCALLS]", "[TOOL_CALLS}", "[tool_calls]"), CALLS)
    other_openers = tuple(other_marks)
    unopened = ("{name}" + ARGUMENTS,)
    before_arguments = (ARGUMENTS,)
    text_end = "[/TOOL_CALLS]"
    id_comes_last = True  # in the template of Mistral Nemo

    def _section(self, opener: str) -> Script[None]:
        self._meant_mark(opener)
        yield from self._skip(WHITESPACE)
        first = yield from self._peek()
        if first in ("{", "["):
            if first == "{":
                self._defect("missing_list")
            marker = yield from self._calls(CALLS, *self.ends)
            if marker == "":
                return
        else:
            marker = yield from self._named_call()
        if marker in ("", self.text_end):
            yield from self._after_calls()
        elif marker is not None:
            self._unread()

    def _named_call(self) -> Script[str | None]:
        """`NAME[ARGS]{…}`, `NAME[CALL_ID]ID[ARGS]{…}` or `NAME{…}`."""
        header, marker = yield from self._read_up_to(LONGEST_HEADER, "{", self.text_end, *self.controls)
        name, call_id = header.strip(), ""
        if marker == CALL_ID:
            call_id, marker = yield from self._read_up_to(LONGEST_HEADER, "{", *self.controls)
        if marker not in ("{", ARGUMENTS) and (self._tool(name) not in self._options.tools or not marker):
            defect = {None: "truncated_call", "": "endless_header"}.get(marker, "call_without_arguments")
            self._abandon(header + call_id, defect)
            return marker
        if not name or (any(map(str.isspace, name)) and self._tool(name) not in self._options.tools):
            self._abandon(header + call_id, "unreadable_call" if name else "missing_name")
            return None if marker == ARGUMENTS else marker
        known = CALL_ID_TEXT.fullmatch(call_id.strip())
        if call_id and not known:
            self._abandon(call_id, "unreadable_id")
        self._open_call(name, known and known.group())
        if marker == ARGUMENTS:
            yield from self._skip(WHITESPACE)
            while (yield from self._next_is(ARGUMENTS)):
                self._stray_marker(ARGUMENTS)
                yield from self._skip(WHITESPACE)
        elif marker == "{":
            self._unread()
        else:
            if self._trial is not None and not self._trial.takes_none:
                raise Abandoned
            self._close_call(marker, marker)
            return marker
        return (yield from self._arguments_alone(CALLS, *self.ends))


class Mistral(DeclaredFormat):
    name = "mistral"
    vllm_parsers = EngineParsers("mistral", "mistral")
    sglang_parsers = EngineParsers("mistral", "mistral")
    reasoning: ReasoningBlock = "written"
    controls = ("[THINK]", "[/THINK]", CALLS, CALL_ID, ARGUMENTS)
    begin_of_text = ("<s>",)
    end_of_turn = ("</s>",)
    reasoning_block = "[THINK]{reasoning}[/THINK]"
    calls = JsonCalls(CALLS + "{call}", "{name}[ARGS]{arguments}")
    other_calls = (JsonCalls(CALLS + "[{calls}]", between=", "),)
    script = MistralReader

    def write(self, message: Message, *, thinking: bool = True) -> Prompt:
        return self._written(message, thinking and bool(message.reasoning), self.calls_to_write())

    def calls_to_write(self) -> Declaration:
        """Calls as newer models write them; a list if the tokenizer has no token for `[ARGS]`."""
        return self.calls if isinstance(self.mark(ARGUMENTS), ControlToken) else self.other_calls[0]
