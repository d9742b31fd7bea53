"""The fields with which clients turn reasoning on and off, as one switch and one effort.

`reasoning_effort` is OpenAI's field, `thinking` is Moonshot's, DeepSeek's and Z.ai's, `enable_thinking` is Qwen's, and
`reasoning` is OpenRouter's. A budget is in `thinking`, in `reasoning`, in vLLM's `thinking_token_budget` or in Qwen's
`thinking_budget`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.turn.turn_request import THINKING_OPTIONS

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

#: The most tokens of reasoning; -1 is no limit.
Budget = Annotated[int, msgspec.Meta(ge=-1)]


class ThinkingField(msgspec.Struct, frozen=True):
    """The field `thinking`. `keep: "all"` asks for the reasoning of earlier turns."""

    type: Literal["enabled", "disabled", "adaptive", "auto"] | None = None
    effort: Effort | None = None
    keep: Literal["all"] | None = None
    budget_tokens: Budget | None = None


class ReasoningField(msgspec.Struct, frozen=True):
    """The field `reasoning`."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Budget | None = None


class ReasoningSwitches(msgspec.Struct, frozen=True):
    """The fields of one request; `options` are its `chat_template_kwargs`."""

    options: Mapping[str, Any]
    reasoning_effort: Effort | None
    thinking: ThinkingField | None
    enable_thinking: bool | None
    reasoning: ReasoningField | None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None

    @property
    def on(self) -> bool:
        """Whether the model may reason: yes, unless a field turns it off."""
        return all(on for _, on in self._switches()) and self.effort != "none"

    @property
    def effort(self) -> Effort | None:
        """The effort that counts."""
        return next((effort for _, effort in self._efforts()), None)

    @property
    def keep(self) -> bool:
        """Whether the prompt is to show the reasoning of earlier turns."""
        return self.thinking is not None and self.thinking.keep == "all"

    @property
    def budget(self) -> tuple[int | None, str]:
        """The most tokens of reasoning, None for any number, and the name of the field that says so."""
        field, limit = next(self._budgets(), ("", None))
        return None if limit == -1 else limit, field

    @property
    def omitted(self) -> tuple[str, ...]:
        """The fields that have no effect: an effort and a budget beside another one."""
        efforts = (field for field, effort in self._efforts() if effort != self.effort)
        first = next((limit for _, limit in self._budgets()), None)
        budgets = (field for field, limit in self._budgets() if limit != first)
        return (*efforts, *budgets)

    def check(self) -> None:
        """Raise `InvalidRequest` that names the field, for a switch that contradicts another or is not supported."""
        if self.reasoning is not None and self.reasoning.exclude:
            message = "reasoning.exclude is not supported: reasoning_content has the reasoning, and content has none"
            raise InvalidRequest(message, param="reasoning.exclude")
        switches = [*self._switches()]
        if self.effort == "none":
            field, _ = next(self._efforts())
            switches.append((field, False))
        for field, on in switches[1:]:
            if on != switches[0][1]:
                raise InvalidRequest(f"{field} contradicts {switches[0][0]}: set only one of them", param=field)

    def _switches(self) -> Iterator[tuple[str, bool]]:
        for name in THINKING_OPTIONS:
            if name in self.options:
                yield f"chat_template_kwargs.{name}", self.options[name]
        if self.enable_thinking is not None:
            yield "enable_thinking", self.enable_thinking
        if self.thinking is not None and self.thinking.type is not None:
            yield "thinking.type", self.thinking.type != "disabled"
        if self.reasoning is not None and self.reasoning.enabled is not None:
            yield "reasoning.enabled", self.reasoning.enabled

    def _efforts(self) -> Iterator[tuple[str, Effort]]:
        """Every effort; the first counts, as in Moonshot's API."""
        if self.thinking is not None and self.thinking.effort is not None:
            yield "thinking.effort", self.thinking.effort
        if self.reasoning is not None and self.reasoning.effort is not None:
            yield "reasoning.effort", self.reasoning.effort
        if self.reasoning_effort is not None:
            yield "reasoning_effort", self.reasoning_effort

    def _budgets(self) -> Iterator[tuple[str, int]]:
        """Every budget; the first counts."""
        limits = (
            ("thinking.budget_tokens", self.thinking.budget_tokens if self.thinking else None),
            ("reasoning.max_tokens", self.reasoning.max_tokens if self.reasoning else None),
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking_budget", self.thinking_budget),
        )
        yield from ((field, limit) for field, limit in limits if limit is not None)
