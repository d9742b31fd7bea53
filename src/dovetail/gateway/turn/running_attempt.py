"""An attempt at an answer while the engine completes it: the engine's token batches become steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import msgspec

from dovetail.completion import Completion, Engine, TokenBatch
from dovetail.errors import EngineError
from dovetail.gateway.turn.output import OutputReader, Step
from dovetail.gateway.turn.tool_names import ToolNames


class RunningAttempt:
    """An attempt that the engine completes, as `retries.Attempt` has it.

    `reports_cached` is False for a retry after shown tokens: the first attempt has reported how much of the prompt was
    in the cache.
    """

    def __init__(
        self,
        engine: Engine,
        completion: Completion,
        output: OutputReader,
        *,
        names: ToolNames,
        reports_cached: bool,
    ) -> None:
        self._names = names
        self._engine = engine
        self._completion = completion
        self._reports_cached = reports_cached
        self.request_id = completion.request_id
        self.output = output

    @property
    def called(self) -> bool:
        return self.output.called

    @property
    def invalid(self) -> bool:
        return self.output.invalid

    async def steps(self) -> AsyncGenerator[Step]:
        # The protocol promises an iterator that can be closed, which is the part of a generator that `aclosing` needs.
        batches = cast(AsyncGenerator[TokenBatch], self._engine.complete(self._completion))
        # The first token of a prompt has no log probability.
        scored = 0 if self._completion.prompt_logprobs is None else len(self._completion.prompt) - 1
        async with aclosing(batches):
            async for batch in batches:
                if len(batch.prompt_logprobs) != scored:
                    raise EngineError("the engine did not return the log probabilities of the prompt once")
                scored = 0
                step = self._names.in_step(await self.output.step(batch))
                yield step if self._reports_cached else msgspec.structs.replace(step, cached=None)
                if step.finish is not None:
                    return
        raise EngineError("the engine's output ended without a finish reason")
