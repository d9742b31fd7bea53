"""One renderer, timed in an environment of its own: a job as JSON on standard input, the answer as JSON on standard
output. Needs nothing but the standard library and what it renders with."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

Job = dict[str, Any]
#: Renders the messages and tools of a request.
Render = Callable[[Any, Any], str]


def native(job: Job) -> Render:
    import dovetail

    render = dovetail.format(job["family"]).render
    return lambda messages, tools: render(messages, tools).text


def jinja(job: Job) -> Render:
    from dovetail.formats.derived.template import Template, pattern

    template = Template(job["template"], {"bos_token": job["bos"]})
    options = job["options"]
    controls = pattern(job["controls"])
    return lambda messages, tools: (
        template.render(messages, tools, controls=controls, add_generation_prompt=True, options=options).text
    )


def transformers(job: Job) -> Render:
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: Any, tools: Any) -> str:
        given = {"add_generation_prompt": True, "bos_token": job["bos"], **job["options"]}
        (text,), _ = render_jinja_template([messages], tools=tools, chat_template=job["template"], **given)
        return str(text)

    return render


def minijinja(job: Job) -> Render:
    import minijinja as library

    def refuse(message: str) -> None:
        raise ValueError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    environment = library.Environment(
        templates={"chat": job["template"]}, trim_blocks=True, lstrip_blocks=True, auto_escape_callback=lambda _: False
    )
    environment.add_filter("tojson", to_json)
    environment.add_function("raise_exception", refuse)
    return lambda messages, tools: environment.render_template(
        "chat", messages=messages, tools=tools, add_generation_prompt=True, bos_token=job["bos"], **job["options"]
    )


def vllm(job: Job) -> Render:
    """vLLM's encoder for DeepSeek V3.2, called as its tokenizer calls it."""
    from vllm.tokenizers.deepseek_v32_encoding import encode_messages

    def render(messages: Any, tools: Any) -> str:
        conversation = [{"role": "system", "tools": tools}, *messages]
        dropped = messages[-1]["role"] == "user"
        return str(encode_messages(conversation, thinking_mode="thinking", drop_thinking=dropped))

    return render


#: Name -> what makes it, and the package that it is.
RENDERERS: dict[str, tuple[Callable[[Job], Render], str]] = {
    "native": (native, "dovetail"),
    "jinja": (jinja, "dovetail"),
    "transformers": (transformers, "transformers"),
    "minijinja": (minijinja, "minijinja"),
    "vllm": (vllm, "vllm"),
}


def main() -> None:
    """Answer with what was rendered, the median CPU seconds of one rendering and the package's version.

    Every rendering gets messages and tools of its own, as every request does. Reading their JSON is not counted.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print
    job = json.load(sys.stdin)
    make, package = RENDERERS[job["renderer"]]
    render = make(job)
    text = render(*json.loads(job["request"]))
    gc.collect()
    gc.freeze()
    seconds: list[float] = []
    while len(seconds) < 5 or (sum(seconds) < job["budget"] and len(seconds) < 1000):
        messages, tools = json.loads(job["request"])
        begin = process_time()
        render(messages, tools)
        seconds.append(process_time() - begin)
    version = importlib.metadata.version(package)
    json.dump({"text": text, "seconds": statistics.median(seconds), "runs": len(seconds), "version": version}, answers)


if __name__ == "__main__":
    main()
