"""Parts of content and arguments of calls, for the prompts of all families."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.tokens import PicturePlace, Prompt

#: The types of parts that are pictures.
PICTURES = ("image", "image_url")


def text_of(part: Mapping[str, Any], i: int, j: int) -> str:
    """The text of part `j` of message `i`. Raises `InvalidRequest` for a part without text, such as an image."""
    text = part.get("text")
    if not isinstance(text, str):
        where = f"messages[{i}].content[{j}]"
        if part.get("type") == "text":
            raise InvalidRequest(f"{where}.text must be a string", param=f"{where}.text")
        raise InvalidRequest(f"{where} has a type that this model cannot read", param=f"{where}.type")
    return text


def with_places(prompt: Prompt, messages: Sequence[Mapping[str, Any]], control: str) -> Prompt:
    """`prompt`, which a chat template has written, with the pictures of `messages` in their places.

    `control`: the control token that stands for a picture. Templates write messages in their order. Raises
    `InvalidRequest` naming the first picture if the template wrote another number of places.
    """
    pictures = [
        (f"messages[{i}].content[{j}]", part)
        for i, message in enumerate(messages)
        if isinstance(content := message.get("content"), list | tuple)
        for j, part in enumerate(content)
        if part["type"] in PICTURES
    ]
    if not pictures:
        return prompt
    places = [at for at in range(1, len(prompt.pieces), 2) if prompt.pieces[at] == control]
    if len(places) != len(pictures):
        where = pictures[0][0]
        raise InvalidRequest(
            f"{where}: the chat template writes {len(places)} places for {len(pictures)} pictures", param=where
        )
    pieces = [*prompt.pieces]
    for at, (_, part) in zip(places, pictures, strict=True):
        pieces[at] = PicturePlace(control, part)
    return Prompt.alternating(pieces)


def arguments_json(arguments: Any) -> str:
    """The arguments of a call in a history as JSON text. Raises `TypeError` if they are neither text nor an object."""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    raise TypeError("arguments are a JSON string or an object")
