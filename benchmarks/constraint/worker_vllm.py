"""vLLM's structured outputs as a worker: the checks of its front end, and the manager in its engine core.

There is no engine. Only grammars and masks are computed, by the methods that vLLM's scheduler calls.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
from typing import Any

from benchmarks.constraint.measure import Job, Library, serve

_SEQUENCES = 16


class Sequence:
    def __init__(self, manager: Any, request: Any) -> None:
        self._manager = manager
        self._request = request
        self._requests = {request.request_id: request}

    def fill(self) -> None:
        self._manager.grammar_bitmask(self._requests, list(self._requests), {})

    def advance(self, token: int) -> bool:
        return bool(self._manager.accept_tokens(self._request, [token]))


class Vllm(Library):
    def open(self, job: Job) -> None:
        from vllm.config import StructuredOutputsConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.tokenizers import cached_tokenizer_from_config
        from vllm.v1.structured_output import StructuredOutputManager

        self._variant = job["variant"]
        backend = "guidance" if self._variant == "lark" else "xgrammar"
        self._config = EngineArgs(
            model=job["hugging_face"],
            max_num_seqs=_SEQUENCES,
            max_model_len=4096,
            structured_outputs_config=StructuredOutputsConfig(backend=backend),
        ).create_engine_config()
        self._tokenizer = cached_tokenizer_from_config(self._config.model_config)
        self._model = job.get("model_tag")
        self._ends = job["ends"]
        self._numbers = itertools.count()
        self._manager = StructuredOutputManager(self._config)
        # The backend, with its view of the vocabulary, comes with the first request.
        self.start({"tools": [], "tag": _ANYTHING, "lark": "start: /a*/"}, ready_made=True)

    def forget(self) -> None:
        if (compiler := self._compiler()) is not None:
            compiler.clear_cache()

    def _compiler(self) -> Any:
        """xgrammar's compiler, which has the cache; guidance caches nothing."""
        return getattr(self._manager.backend, "compiler", None)

    def _grammar(self, request: Job, ready_made: bool) -> dict[str, str]:
        if self._variant == "lark":
            return {"grammar": request["lark"]}
        if self._variant == "tag" or ready_made:
            return {"structural_tag": request["tag"]}
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
        from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag
        from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

        tools = [ChatCompletionToolsParam.model_validate(tool) for tool in request["tools"]]
        tag = get_model_structural_tag(self._model, tools, "auto", False, strict_level=ToolStrictLevel.PARAMETER)
        return {"structural_tag": tag.model_dump_json()}

    def _checked(self, request: Job, ready_made: bool = False) -> Any:
        """The work of its API server, in its event loop."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.request import Request

        asked = StructuredOutputsParams(**self._grammar(request, ready_made))
        params = SamplingParams(max_tokens=1024, structured_outputs=asked, stop_token_ids=self._ends)
        config = self._config
        params.verify(config.model_config, None, config.structured_outputs_config, self._tokenizer)
        return Request(str(next(self._numbers)), [1], params, None)

    def start(self, request: Job, ready_made: bool = False) -> Sequence:
        made = self._checked(request, ready_made)
        self._manager.grammar_init(made)
        made.structured_output_request._grammar.result()
        return Sequence(self._manager, made)

    def write(self, request: Job) -> bool:
        return self._variant == "own" and bool(self._grammar(request, False))

    async def serve(self, request: Job) -> None:
        """The part of its front end. Grammars are compiled in its engine's process."""
        self._checked(request)

    def kept(self) -> int | None:
        compiler = self._compiler()
        return None if compiler is None else int(compiler.get_cache_size_bytes())


_ANYTHING = '{"type": "structural_tag", "format": {"type": "any_text"}}'


def load() -> tuple[Job, Library]:
    """See `measure.serve` for the contract."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    names = ("vllm", "xgrammar", "llguidance")
    return {"versions": {name: importlib.metadata.version(name) for name in names}}, Vllm()


if __name__ == "__main__":
    serve(load)
