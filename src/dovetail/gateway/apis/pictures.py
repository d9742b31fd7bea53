"""Pictures in requests to a model that reads text only: what stands in their place, and how Messages refuses one.

Every API asks here, so this is the place to change for a model that sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.errors import InvalidRequest

#: The types of parts and blocks that are shown rather than read, and the word for each.
_WORDS = {"image_url": "picture", "input_image": "picture", "image": "picture", "video_url": "video"}
_INDEX = re.compile(r"\[(\d+)\]")


def placeholder(kind: Any) -> str | None:
    """The text in place of a part of the type `kind`; None if it is not a picture."""
    word = _WORDS.get(kind) if isinstance(kind, str) else None
    return f"[{word} left out: this model reads text only]" if word else None


def refused(block: Mapping[str, Any], field: str) -> InvalidRequest:
    """The error for an image block, in the words of Anthropic's API. claude-code then drops the picture and goes on.

    `field`: the block, as in `messages[3].content[0]`, or one inside that block.
    """
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    place = ".content.".join(_INDEX.findall(field)[:2])
    where = f"messages.{place}.image.source.{'url' if kind == 'url' else 'base64'}"
    return InvalidRequest(f"{where}: Could not process image: this model reads text only")
