"""`TransformersParser`: transformers' own parser of response templates, in a process of its own.

A pattern may take a time that grows exponentially with an answer. The process can be ended.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from dovetail.errors import PlanError
from dovetail.formats.derived.proof import TOOLS
from dovetail.formats.response_templates.roundtrip import Unparsed

_START, _ANSWER = 60.0, 10.0  # seconds


class TransformersParser:
    """Raises `PlanError` if transformers 5.13 or later is not installed."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(1)
        self._ended = False
        try:
            self._pool.apply_async(_load).get(_START)
        except ImportError:
            self.__exit__()
            raise PlanError("transformers 5.13 or later has the parser: pip install -U transformers") from None

    def __enter__(self) -> TransformersParser:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def __call__(self, response_template: Any, text: str, prompt: str) -> dict[str, Any]:
        """The message in `text`, which stands after `prompt`. After an answer that takes too long, all are refused."""
        try:
            if self._ended:
                raise multiprocessing.TimeoutError
            parsed = self._pool.apply_async(_parse, (response_template, text, prompt))
            message: dict[str, Any] = parsed.get(_ANSWER)
        except multiprocessing.TimeoutError:
            self._ended = True
            raise Unparsed(f"its patterns take more than {_ANSWER:g} s") from None
        return message


def _load() -> None:
    from transformers.utils import chat_parsing  # noqa: F401


def _parse(response_template: Any, text: str, prompt: str) -> Any:
    from transformers.utils.chat_parsing import parse_response

    try:
        return parse_response(text, response_template, prefix=prompt, tools=[*TOOLS])
    except Exception as error:
        # Anything may be raised, because anything may be in the template.
        raise Unparsed(str(error).partition("\n")[0]) from None
