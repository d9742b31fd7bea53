"""A request's prompt, with all that the request says about it, and what the prompt says about the answer."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.conversation import check_tools
from dovetail.errors import DovetailError, InvalidRequest, SchemaRefused
from dovetail.formats.base import Format, Messages
from dovetail.formats.tool_choice import Strict
from dovetail.gateway.apis.chat_request import FIELD_OF_OPTION, ChatRequest
from dovetail.grammar import Choice, Concat, ControlToken, ExactText, Grammar, Loosened, Maybe, Node
from dovetail.tokens import Prompt


def rendered(request: ChatRequest, fmt: Format, messages: Messages) -> Prompt:
    """The request's prompt. `messages` are its own, repaired. Raises `InvalidRequest` and `RenderError`."""
    try:
        prompt = fmt.render(
            messages,
            request.tools,
            thinking=request.thinking,
            add_generation_prompt=request.opens_turn,
            continue_final_message=bool(request.continue_final_message),
            **request.template_options(fmt.template_options),
        )
    except InvalidRequest as error:
        option = (error.param or "").removeprefix("chat_template_kwargs.")
        if option in FIELD_OF_OPTION and option not in (request.chat_template_kwargs or {}):
            error.param = FIELD_OF_OPTION[option]  # the request has it as a field of its own
        raise
    if request.tools and request.tool_choice != "none" and not _shows_tools(fmt):
        # Some templates drop tools in silence, and no call can be hoped for.
        raise InvalidRequest(
            f"the prompts of {fmt.name} do not show tools: leave them out, or serve the model with a chat template "
            "that has them",
            param="tools",
        )
    return prompt


class DeclaredTools:
    """The tools that may be called: the request's, and those of its messages that the format shows.

    Of two with one name the later one counts, as the model reads it last, unless both are the request's own. Where the
    request says itself how strictly it is to be constrained, that is what they say, but for those that say false to
    "schema". Raises `InvalidRequest` naming the field for tools that are not well formed.
    """

    def __init__(self, request: ChatRequest, fmt: Format) -> None:
        found = [(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
        holding = [(i, message) for i, message in enumerate(request.messages) if message.get("tools")]
        if holding:
            shown = _roles_with_tools(fmt)
            for i, message in holding:
                if message["role"] in shown:
                    where = f"messages[{i}].tools"
                    with _named_in(where):
                        check_tools(message["tools"])
                    found += ((tool, f"{where}[{j}]") for j, tool in enumerate(message["tools"]))
        latest = {tool["function"]["name"]: (tool, where) for tool, where in found}
        self.tools = [tool for tool, _ in latest.values()]
        if (level := request.extension.strict) is not None:
            self.tools = [_saying(level, tool) for tool in self.tools]
        self._places = [where for _, where in latest.values()]

    def placed(self, where: str) -> str:
        """A field in one of `tools` as one of the request's."""
        at = _INDEXED.match(where)
        return self._places[int(at[1])] + where[at.end() :] if at and int(at[1]) < len(self._places) else where

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors that name one of `tools` by its index name it where the request has it; those that name none, all."""
        try:
            yield
        except InvalidRequest as error:
            param, message = error.param or "tools", error.message
            if (at := _INDEXED.match(param)) and int(at[1]) < len(self._places):
                told, where = at[0], self._places[int(at[1])]
                param, message = param.replace(told, where, 1), message.replace(told, where, 1)
                if isinstance(error, SchemaRefused):
                    message += ' (the request can ask for less: "dovetail": {"strict": "names"})'
            # Another one: other requests may be waiting for the same.
            raise type(error)(message, param=param) from error


def _saying(level: Strict, tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of a request that says a level. "off" and "names" are the most that is enforced, whatever a library always
    sends; with "schema" it is the tool that asks to be told of what cannot be."""
    own = tool["function"].get("strict")
    strict = (True if own is None else own) if level == "schema" else None
    return {**tool, "function": {**tool["function"], "strict": strict}}


_INDEXED = re.compile(r"tools\[(\d+)\]")


@contextmanager
def _named_in(where: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        error.param = (error.param or "").replace("tools", where, 1)
        error.message = error.message.replace("tools", where, 1)
        raise


_PROBE = "zqprobexv"  # letters, which nothing escapes, and no word
_PROBED = [{"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}]
_USER = {"role": "user", "content": "hi"}


@functools.lru_cache(16)
def _shows_tools(fmt: Format) -> bool:
    """Whether a request's tools are in its prompts. A format that cannot write so short a conversation may do it."""
    try:
        return _PROBE in fmt.render([_USER], _PROBED).text
    except DovetailError:
        return True


@functools.lru_cache(16)
def _roles_with_tools(fmt: Format) -> frozenset[str]:
    """The roles whose messages can show tools of their own."""
    roles = set()
    for role in ("system", "developer", "user"):
        with suppress(DovetailError):
            asked = fmt.render([{"role": role, "content": "hi", "tools": _PROBED}, _USER])
            if _PROBE in asked.text:
                roles.add(role)
    return frozenset(roles)


def may_reason(request: ChatRequest, fmt: Format, left_open: bool) -> bool:
    """Whether the answer may begin with reasoning. `left_open`: the prompt ends in the midst of some.

    Where the model writes all of a reasoning block, it does so at the beginning of an answer and nowhere else.
    """
    if fmt.reasoning == "written":
        return request.thinking and not request.continue_final_message
    return left_open


def can_follow(grammar: Grammar, request: ChatRequest, fmt: Format, left_open: bool) -> bool:
    """Whether `grammar`, which is that of a whole answer, holds behind this prompt too.

    It does not in the midst of reasoning if the model is to open that; nor behind half an answer's content if that is
    held to a response format, or if answers begin with something else than text.
    """
    if left_open:
        return fmt.reasoning != "written"
    return not request.continue_final_message or not (request.structured or _headed(grammar.root))


def _headed(node: Node) -> bool:
    """Whether all that `node` takes begins with a control token or with what is always the same."""
    match node:
        case ControlToken() | ExactText():
            return True
        case Loosened(item):
            return _headed(item)
        case Choice(options):
            return all(map(_headed, options))
        case Concat(items):
            for item in items:
                if not _headed(item.item if isinstance(item, Maybe) else item):
                    return False
                if not isinstance(item, Maybe):
                    return True
    return False
