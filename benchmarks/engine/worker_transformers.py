"""transformers' `generate` as a worker; it also says how far apart two tokens' logits are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from benchmarks.engine.measure import Log, serve

_PAD = 0


class _Watch(StoppingCriteria):  # type: ignore[misc]
    """Asked after every step whether to stop: never, but that is how one learns of the step."""

    def __init__(self, prompt: int, log: Log) -> None:
        self._prompt = prompt
        self._log = log

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        batch, length = input_ids.shape
        self._log.note([length - self._prompt] * batch)
        return torch.zeros(batch, dtype=torch.bool)


class Transformers:
    def __init__(self, job: dict[str, Any]) -> None:
        torch.set_num_threads(job["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(
            Path(job["target"]), dtype=getattr(torch, job["dtype"]), attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None
        # What `generate` takes for drafting. It knows no EAGLE-3: there the prompt is looked up.
        self._drafting: dict[str, Any] = {}
        drafting = ""
        if job["method"] == "draft_model" and job["drafter"] is not None:
            self._drafting["assistant_model"] = self._assistant(job)
            drafting = ", assisted"
        elif job["drafter"] is not None:
            self._drafting["prompt_lookup_num_tokens"] = job["draft_tokens"]
            drafting = ", prompt lookup"
        self.settings = self._faster_attention() + drafting

    def _assistant(self, job: dict[str, Any]) -> Any:
        """A smaller model, that drafts as many tokens in every step as the others' do."""
        model = AutoModelForCausalLM.from_pretrained(Path(job["drafter"]), dtype=getattr(torch, job["dtype"])).eval()
        model.generation_config.eos_token_id = None
        model.generation_config.num_assistant_tokens = job["draft_tokens"]
        model.generation_config.num_assistant_tokens_schedule = "constant"
        model.generation_config.assistant_confidence_threshold = 0.0
        return model

    def _faster_attention(self) -> str:
        """The implementation that is quicker here, of the two that a CPU has."""
        seconds: dict[str, float] = {}
        for name in ("sdpa", "eager", "sdpa", "eager"):  # the first of each warms up
            self._model.set_attn_implementation(name)
            before = time.perf_counter()
            self.run([[5] * 32], 16, Log())
            seconds[name] = time.perf_counter() - before
        best = min(seconds, key=seconds.__getitem__)
        self._model.set_attn_implementation(best)
        return best

    def run(self, prompts: list[list[int]], max_tokens: int, log: Log) -> list[list[int]]:
        if self._drafting and len(prompts) > 1:
            raise ValueError("assisted decoding takes one sequence at a time")
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor([[_PAD] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max_tokens,
                pad_token_id=_PAD,
                stopping_criteria=StoppingCriteriaList([_Watch(longest, log)]),
                **self._drafting,
            )
        answers: list[list[int]] = out[:, longest:].tolist()
        return answers

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The logits of `tokens` after `prompt`, and the rank of each."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([job["prompt"]])).logits[0, -1].float()
        found = [float(logits[token]) for token in job["tokens"]]
        return {"logits": found, "ranks": [int((logits > logit).sum()) for logit in found]}


def load(job: dict[str, Any]) -> tuple[dict[str, str], Transformers]:
    """`serve` has the contract."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return {"transformers": transformers.__version__, "torch": torch.__version__}, Transformers(job)


if __name__ == "__main__":
    serve(load)
