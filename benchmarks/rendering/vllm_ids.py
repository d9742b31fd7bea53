"""vLLM's own renderers, from messages to ids, as its server calls them; runs in vLLM's environment."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def rendered(job: dict[str, Any]) -> list[list[int]]:
    """The ids of each conversation."""
    from vllm.config import ModelConfig, VllmConfig
    from vllm.renderers.params import ChatParams
    from vllm.renderers.registry import renderer_from_config

    folder = job["folder"]
    model = ModelConfig(model=folder, tokenizer=folder, tokenizer_mode=job["mode"], dtype="float32")
    renderer = renderer_from_config(VllmConfig(model_config=model))
    params = ChatParams(chat_template=None, chat_template_kwargs={"add_generation_prompt": True, **job["options"]})
    _, prompts = renderer.render_chat(job["conversations"], params)
    return [list(prompt["prompt_token_ids"]) for prompt in prompts]


def main() -> None:
    """Answer with every job's ids and vLLM's version."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    import vllm

    ids = list(map(rendered, json.load(sys.stdin)["jobs"]))
    json.dump({"version": vllm.__version__, "ids": ids}, answers)
    answers.flush()
    os._exit(0)  # whatever its threads still wait for, nobody waits for them


if __name__ == "__main__":
    main()
