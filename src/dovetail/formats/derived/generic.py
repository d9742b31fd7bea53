"""`generic`: tools for a chat template that shows none.

The template gets a conversation without tools: they are declared in the system message, calls are text of the
assistant, and results are messages of the user. One declaration says how calls look, so that reader, writer and grammar
are a family's own. docs/decisions/0049 has the reasons for the layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dovetail.events import Call
from dovetail.formats.declarations import cached
from dovetail.formats.declared.declared import DeclaredFormat, JsonCalls
from dovetail.formats.derived.traced import Mixture, Traced
from dovetail.formats.parts import arguments_json
from dovetail.formats.prompts.history import HistoryRules
from dovetail.formats.prompts.turns import is_empty
from dovetail.reading.two_languages import JsonOrTagReader

NAME = "generic"
OPENER, CLOSER = "<tool_call>", "</tool_call>"
CALLS = JsonCalls(f"{OPENER}\n{{call}}\n{CLOSER}", between="\n", after_content="\n")
_BEFORE_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER_TOOLS = f"""
</tools>

For each function call, return a json object with function name and arguments within {OPENER}{CLOSER} XML tags:
{OPENER}
{{"name": <function-name>, "arguments": <args-json-object>}}
{CLOSER}"""
_INSTRUCTIONS = ("system", "developer")
_BEFORE_RESULT, _AFTER_RESULT = "<tool_response>\n", "\n</tool_response>"

Messages = Sequence[Mapping[str, Any]]


def family(controls: Sequence[str], ends: Sequence[str]) -> type[DeclaredFormat]:
    """The family of the calls. `controls`: the tokenizer's control tokens. `ends`: those that end a turn."""
    attributes: dict[str, Any] = {
        "name": NAME,
        "calls": CALLS,
        "script": JsonOrTagReader,
        "reasoning": "none",
        "controls": tuple(tag for tag in (OPENER, CLOSER) if tag in controls),
        "end_of_turn": tuple(ends),
    }
    return type("Generic", (DeclaredFormat,), attributes)


def rules(plain: HistoryRules) -> HistoryRules:
    """What histories need, given the rules of the template itself."""
    return replace(
        plain,
        alternation="any" if plain.alternation == "any" else "neighbours",
        results_in_order=True,
        hides_calls=False,
        hides_results=False,
    )


def uses_tools(messages: Messages, tools: Any) -> bool:
    """Whether a conversation has tools, calls or results."""
    return bool(tools) or any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


class Spelling(NamedTuple):
    """How a template is given tools, calls and results in words.

    `system`: whether the template shows system messages; if not, the first message of the user declares the tools.
    `parts`: whether it takes content in parts only.
    `controls`: the control tokens of the tokenizer that are part of the markup.
    """

    system: bool
    parts: bool
    controls: tuple[str, ...]

    def spelled(self, messages: Messages, tools: Any) -> Messages:
        """`messages` without tools, calls and results; the same ones if there are none."""
        if not uses_tools(messages, tools):
            return messages
        turns = [*self._turns(messages)]
        if tools:
            self._declare(turns, (_BEFORE_TOOLS, Traced(_listed(tools)), _AFTER_TOOLS))
        return turns

    def _turns(self, messages: Messages) -> Iterator[Mapping[str, Any]]:
        """Results in a row, and the message of the user after them, are one turn, because some templates refuse two."""
        results: list[Any] = []
        for message in messages:
            content = _own(message.get("content"))
            if message["role"] == "tool":
                results += ("\n" if results else "", _BEFORE_RESULT, content, _AFTER_RESULT)
                continue
            before = (*results, "\n\n") if results and message["role"] == "user" else ()
            if results and not before:
                yield {"role": "user", "content": self._joined(*results)}
            results = []
            calls = self._calls(message.get("tool_calls") or (), after_content=not is_empty(content))
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            yield {**plain, "content": self._joined(*before, content, *calls)}
        if results:
            yield {"role": "user", "content": self._joined(*results)}

    def _calls(self, calls: Sequence[Any], *, after_content: bool) -> Iterator[str]:
        functions = (call["function"] for call in calls)
        written = [Call("", each["name"], arguments_json(each["arguments"]) or "{}") for each in functions]
        for text, control in CALLS.segments(written, self.controls, after_content=after_content):
            yield text if control else Traced(text)

    def _declare(self, turns: list[Mapping[str, Any]], declaration: Sequence[str]) -> None:
        """Declare tools after the system message, or before the first message of the user. It is added if need be."""
        roles = _INSTRUCTIONS if self.system else ("user",)
        turn = next((turn for turn in (turns[:1] if self.system else turns) if turn["role"] in roles), None)
        if turn is None:
            turns.insert(0, {"role": roles[0], "content": self._joined(*declaration)})
            return
        content = turn["content"]
        between = "" if is_empty(content) else "\n\n"
        both = (content, between, *declaration) if self.system else (*declaration, between, content)
        turns[turns.index(turn)] = {**turn, "content": self._joined(*both)}

    def _joined(self, *contents: Any) -> Any:
        """Texts and parts as one content. A plain string is markup; a text of the request is `Traced`."""
        if not self.parts and all(isinstance(content, str) for content in contents):
            return Mixture.of("".join(contents), contents)
        parts: list[Any] = []
        for content in filter(None, contents):
            parts += [_part(content)] if isinstance(content, str) else content
        return parts


def _own(content: Any) -> Any:
    """A content of the request, as `Spelling._joined` takes it."""
    return Traced(content or "") if isinstance(content, str | None) else content


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": Mixture.of(text, (text,))}


@cached
def _listed(tools: Messages) -> str:
    """A line of JSON for each tool."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
