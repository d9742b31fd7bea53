"""What a picture of a megabyte takes of the gateway's CPU: `python -m benchmarks.gateway.pictures`.

Dovetail in front of an upstream that computes nothing. Blocks of requests with one picture alternate with blocks of the
same requests without it; the difference is what the picture takes: receiving and reading the body, checking the file,
and sending it on. The file's format and the API change from row to row.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.engine.cases import DEMO
from benchmarks.gateway import fronts
from benchmarks.gateway.fronts import Running
from benchmarks.gateway.measure import upstream
from benchmarks.tables import Row, machine, show
from dovetail.client.statistics import quantile
from dovetail.tokens import tokenizer

#: The goal, in milliseconds.
GOAL = 15.0
#: The width, height and quality by which noise becomes a file of about a megabyte, by format.
_SIZES = {"PNG": (680, 520, None), "JPEG": (1500, 1000, 88), "WEBP": (1300, 1000, 85)}


def file(kind: str) -> bytes:
    width, height, quality = _SIZES[kind]
    out = io.BytesIO()
    noise = Image.effect_noise((width, height), 60)
    picture = Image.merge("RGB", (noise, noise.transpose(Image.Transpose.ROTATE_180), noise))
    picture.save(out, kind, **({} if quality is None else {"quality": quality}))
    return out.getvalue()


def chat(url: str) -> dict[str, Any]:
    return {"messages": [_turn({"type": "text", "text": "hi"}, url, {"type": "image_url", "image_url": {"url": url}})]}


def responses(url: str) -> dict[str, Any]:
    turn = _turn({"type": "input_text", "text": "hi"}, url, {"type": "input_image", "image_url": url})
    return {"input": [turn], "max_output_tokens": 8, "store": False}


def messages(url: str) -> dict[str, Any]:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"messages": [_turn({"type": "text", "text": "hi"}, url, {"type": "image", "source": source})]}


def _turn(text: dict[str, str], url: str, picture: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [text, picture] if url else [text]}


#: The path of each API, and its request with the picture of a URL; "": without one.
APIS: Mapping[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "chat completions": ("/v1/chat/completions", chat),
    "Responses": ("/v1/responses", responses),
    "Messages": ("/v1/messages", messages),
}


def milliseconds(running: Running, path: str, body: bytes, requests: int) -> float:
    """CPU milliseconds of the gateway for a request."""
    before = sum(running.cpu().values())
    for _ in range(requests):
        request = urllib.request.Request(
            f"http://127.0.0.1:{running.port}{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.read()
    return (sum(running.cpu().values()) - before) / requests * 1000


def added(running: Running, api: str, data: bytes, kind: str, blocks: int, requests: int) -> list[float]:
    """CPU milliseconds that the picture adds, once for each pair of blocks."""
    path, made = APIS[api]
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
    bodies = [json.dumps({"model": "m", "max_tokens": 8, **made(each)}).encode() for each in ("", url)]
    for body in bodies:  # the first picture imports Pillow
        milliseconds(running, path, body, 3)
    pairs = ([milliseconds(running, path, body, requests) for body in bodies] for _ in range(blocks))
    return [seen - plain for plain, seen in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7, help="pairs of blocks (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=50, help="requests of a block (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    vocabulary = tokenizer(DEMO / "target")
    tokens = [(vocabulary.encode("a")[0], "a")] * 8
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(upstream(tokens, folder))
        running = stack.enter_context(fronts.running(fronts.dovetail("dovetail"), port, folder / "log"))
        for kind in _SIZES:
            data = file(kind)
            for api in APIS:
                taken = sorted(added(running, api, data, kind, options.blocks, options.requests))
                low, middle, high = (f"{quantile(taken, share):.1f}" for share in (0.25, 0.5, 0.75))
                rows.append([kind, f"{len(data) / 1e6:.2f}", api, middle, f"{low} to {high}"])
    headings = ["format", "MB", "API", f"ms of CPU (goal: {GOAL:g})", "quartiles"]
    note = f"{machine()}; {options.blocks} pairs of blocks of {options.requests} requests."
    sheet = ("What a picture adds", headings, rows)
    show([sheet], [note], as_markdown=options.markdown, words=("format", "API"))


if __name__ == "__main__":
    main()
