"""`dovetail explain --raw`: the three steps of a request as commands for a shell, to do each by hand.

Every text is JSON in ASCII inside quotes of the shell, so that it is neither run nor shown.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec

from dovetail.cli.asked_answers import api_of
from dovetail.errors import InvalidRequest
from dovetail.gateway.recordings.recording import Recording

#: The fields of a chat completion that a completion has too.
_SAME = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)
#: Where the URL is not known.
URL = "http://127.0.0.1:8000"
_POST = "curl -sS -H 'Content-Type: application/json'"


def raw_steps(source: Recording | dict[str, Any], path: str, url: str, *, key: bool) -> str:
    """The commands for the recording or the request in the file `path`, at the server `url`. `key`: it needs one.

    Raises `InvalidRequest` for a recording of a request that is no JSON object, or whose texts are redacted.
    """
    body = source if isinstance(source, dict) else request_of(source)
    if isinstance(source, dict) and api_of(body) not in (None, "chat"):
        raise InvalidRequest("--raw of a request needs a chat completion; of other APIs, it needs a recording")
    # The key's name is left to the shell, so it is in double quotes.
    post = f'{_POST} -H "Authorization: Bearer $OPENAI_API_KEY"' if key else _POST
    lines = [*_prompt(source, path, f"{post} {url}"), "", *_complete(source, body, f"{post} {url}"), ""]
    return "\n".join([*lines, *_parse(source, body, path)]) + "\n"


def request_of(recording: Recording) -> dict[str, Any]:
    """The body of a recorded request. Raises `InvalidRequest` if the recording does not have it."""
    if recording.redacted:
        raise InvalidRequest("the recording's texts are redacted, so its request cannot be sent again")
    body = msgspec.json.decode(recording.request)
    if not isinstance(body, dict):
        raise InvalidRequest("the recording does not have the request's body, so it cannot be sent again")
    return body


def _prompt(source: Recording | dict[str, Any], path: str, post: str) -> Iterator[str]:
    yield "# 1. render: messages and tools become a prompt, as text and as token ids"
    if isinstance(source, dict):
        yield f"{post}/v1/chat/completions/render --data-binary @{shlex.quote(path)} >prompt.json"
    elif source.api == "chat":
        yield f"{_python(_REQUEST, path)} |"
        yield f"  {post}/v1/chat/completions/render --data-binary @- >prompt.json"
    else:
        yield f"# (there is no request that renders {source.api}: the ids are those of the recording)"
        yield f"{_python(_IDS, path)} >prompt.json"


def _complete(source: Recording | dict[str, Any], body: dict[str, Any], post: str) -> Iterator[str]:
    options = {name: body[name] for name in _SAME if body.get(name) is not None}
    if (most := body.get("max_completion_tokens")) is not None:
        options["max_tokens"] = most
    model = body.get("model") or ""
    if isinstance(source, Recording) and source.options is not None:
        options = {"max_tokens": source.options.max_tokens, "stop": source.options.stop} | _set(source.options.sampling)
    if "max_tokens" not in options:
        options["max_tokens"] = -1
    yield "# 2. complete: the engine continues the ids; nothing enforces a grammar here"
    yield f"{_python(_COMPLETE, json.dumps({'model': model, **options}))} |"
    yield f"  {post}/v1/completions --data-binary @- >answer.json"


def _set(sampling: dict[str, Any]) -> dict[str, Any]:
    """`sampling` without what changes nothing."""
    return {name: value for name, value in sampling.items() if value not in (None, {})}


def _parse(source: Recording | dict[str, Any], body: dict[str, Any], path: str) -> Iterator[str]:
    recording = source if isinstance(source, Recording) else None
    name = recording.format if recording is not None and recording.format else "FORMAT"
    thinking = ""
    if recording is not None and recording.prompt is not None:
        thinking = " --thinking" if recording.prompt.in_reasoning else " --no-thinking"
    yield "# 3. parse: the text becomes content, reasoning and calls"
    if name == "FORMAT":
        yield "# (FORMAT is the name of the model's format: `dovetail formats --of CHECKPOINT` shows it)"
    if body.get("tools") and (recording is None or recording.api == "chat"):  # other APIs' tools have other shapes
        yield f"{_python(_TOOLS if recording is None else _RECORDED_TOOLS, path)} >tools.json"
        thinking += " --tools tools.json"
    yield f"{_python(_TEXT)} | dovetail parse --format {shlex.quote(name)}{thinking}"


_REQUEST = 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))["request"]))'
_IDS = 'import json, sys; print(json.dumps({"token_ids": json.load(open(sys.argv[1]))["prompt"]["ids"]}))'
_COMPLETE = (
    "import json, sys; "
    'print(json.dumps({**json.loads(sys.argv[1]), "prompt": json.load(open("prompt.json"))["token_ids"]}))'
)
_TOOLS = 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))["tools"]))'
_RECORDED_TOOLS = 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))["request"]["tools"]))'
_TEXT = 'import json, sys; sys.stdout.write(json.load(open("answer.json"))["choices"][0]["text"])'


def _python(program: str, *arguments: str) -> str:
    return " ".join(["python3", "-c", shlex.quote(program), *map(shlex.quote, arguments)])
