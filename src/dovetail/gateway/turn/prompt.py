"""The prompt of a turn: the request's messages, tools and template options, rendered by the format."""

from __future__ import annotations

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.formats.base import Format, Messages
from dovetail.formats.efforts import nearest_effort
from dovetail.gateway.turn.tools import shows_tools
from dovetail.gateway.turn.turn_request import FIELD_OF_OPTION, TurnRequest
from dovetail.tokens import Prompt


def render_prompt(request: TurnRequest, fmt: Format, messages: Messages) -> Prompt:
    """The prompt of `request`. `messages` are the request's own after repair.

    Raises `InvalidRequest`, also for tools that the template would drop in silence, and `RenderError`.
    """
    request = fitted(request, fmt)
    try:
        prompt = fmt.render(
            messages,
            request.tools,
            thinking=request.thinking,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            **request.template_options(fmt.template_options),
        )
    except InvalidRequest as error:
        option = (error.param or "").removeprefix("chat_template_kwargs.")
        if option in FIELD_OF_OPTION and option not in request.chat_template_kwargs:
            error.param = FIELD_OF_OPTION[option]  # the client sent it as a field of its own
        raise
    if request.tools and request.tool_choice != "none" and not shows_tools(fmt):
        raise InvalidRequest(
            "the model's chat template does not show tools: leave them out, or serve the model from a folder whose "
            "chat_template.jinja has them",
            param="tools",
        )
    return prompt


def fitted(request: TurnRequest, fmt: Format) -> TurnRequest:
    """`request` with a reasoning effort that the format knows, if it asks for the nearest one."""
    if not request.fit_reasoning_effort:
        return request
    effort = nearest_effort(request.reasoning_effort, fmt.efforts)
    return msgspec.structs.replace(request, reasoning_effort=effort)
