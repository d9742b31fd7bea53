"""vLLM's parsers as a worker, made and fed as its chat endpoint does it: one parser, text and ids of each delta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.reading.measure import Open, Piece, Stream, serve


class TableTokenizer:
    """What the parsers ask of a tokenizer, answered from the ids that the parent cut the output into."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._table = {int(token): spelled.encode("latin-1") for token, spelled in job["table"].items()}
        self._control: dict[str, int] = job["control"]
        self._encoded: dict[str, list[int]] = job["encoded"]
        self._vocabulary = {spelled.decode("utf-8", "replace"): token for token, spelled in self._table.items()}
        self.all_special_tokens = [job["end"]]
        self.all_special_ids = [self._control[job["end"]]]

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Only what the parent has encoded: the opening of a block, as a parser may look for it by its ids."""
        return self._encoded[text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return b"".join(self._table[token] for token in ids).decode("utf-8", "replace")


def read(delta: Any) -> Iterable[Piece]:
    """A delta message as pieces."""
    if delta is None:
        return
    if delta.reasoning:
        yield "reasoning", 0, delta.reasoning
    if delta.content:
        yield "content", 0, delta.content
    for call in delta.tool_calls or ():
        if call.function is not None:
            if call.function.name:
                yield "name", call.index, call.function.name
            if call.function.arguments:
                yield "arguments", call.index, call.function.arguments


def _recode(job: dict[str, Any]) -> None:
    """Give every delta the ids of its own text in the vocabulary that harmony's library has built in and insists on."""
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding

    encoding = get_encoding()
    outputs = [job["deltas"]] if "deltas" in job else [deltas for deltas, _ in job["outputs"]]
    for deltas in outputs:
        for delta in deltas:
            delta[1] = encoding.encode(delta[0], allowed_special="all")
    job["control"] = {literal: encoding.encode(literal, allowed_special="all")[0] for literal in job["control"]}


def load() -> tuple[dict[str, str], Callable[[dict[str, Any]], Open]]:
    """`serve` has the contract."""
    import vllm
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    def open_family(job: dict[str, Any]) -> Open:
        if job["family"] == "harmony":
            _recode(job)
        tokenizer = TableTokenizer(job)
        names = job["parsers"]["vllm"]
        parser_class = ParserManager.get_parser(
            tool_parser_name=names["tools"],
            reasoning_parser_name=names["reasoning"],
            enable_auto_tools=True,
            is_harmony=job["family"] == "harmony",
        )
        assert parser_class is not None
        # DeepSeek's parsers take reasoning to be off unless the request turned it on, as its template does.
        options = job.get("options", {"thinking": True} if job["thinks"] else {})
        request = ChatCompletionRequest(
            model="bench",
            messages=[{"role": "user", "content": "Go on."}],
            tools=job["tools"] or None,
            stream=True,
            chat_template_kwargs=options,
        )
        prompt: list[int] = job["prompt"]
        end = [] if job.get("cut_off") else [job["control"][job["end"]]]

        def start() -> Stream:
            parser = parser_class(tokenizer, request.tools, chat_template_kwargs=options, model_config=None)
            parse = parser.parse_delta
            return Stream(
                feed=lambda text, ids: parse(text, ids, request, prompt, finished=False),
                last=lambda text, ids: parse(text, ids + end, request, prompt, finished=True),
                read=read,
            )

        if job["task"] != "readings":  # which reports what fails by output
            start().feed("", [])  # a missing dependency is reported here
        return start

    return {"vllm": vllm.__version__}, open_family


if __name__ == "__main__":
    serve(load)
