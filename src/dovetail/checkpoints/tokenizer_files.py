"""What a checkpoint's tokenizer files declare: control tokens, special tokens and chat templates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from dovetail.checkpoints.files import read_optional, read_text, read_tokenizer_file
from dovetail.errors import CheckpointError


class Token(msgspec.Struct):
    """An added token. `id` is only declared inside a tokenizer.json."""

    content: str
    id: int = -1


class _Template(msgspec.Struct):
    name: str
    template: str


_Templates: TypeAlias = str | dict[str, str] | list[_Template] | None
_Special: TypeAlias = str | Token | None


class TokenizerConfig(msgspec.Struct):
    """The fields of a tokenizer_config.json that Dovetail uses; absent fields have their defaults."""

    added_tokens_decoder: dict[int, Token] = {}
    chat_template: _Templates = None
    tokenizer_class: Any = None
    auto_map: Any = None
    add_bos_token: bool | None = None
    bos_token: _Special = None
    eos_token: _Special = None
    unk_token: _Special = None
    sep_token: _Special = None
    pad_token: _Special = None
    cls_token: _Special = None
    mask_token: _Special = None
    response_template: Any = None


_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPECIAL = tuple(name for name in TokenizerConfig.__struct_fields__ if re.fullmatch("[a-z]{3,4}_token", name))


class _TokenizerJson(msgspec.Struct):
    added_tokens: list[Token] = []


class ChatTemplate(NamedTuple):
    """A chat template's source, and the file that holds it."""

    file: str
    source: str


class TokenizerFiles:
    """The tokenizer files of a checkpoint's folder.

    `controls`: ids of control tokens by literal. `special`: literals by the names that templates use (bos_token).
    `templates`: chat templates by name. `response_template`: how Hugging Face's parser reads answers, not
    checked; None if there is none. An absent file declares nothing; a broken one raises `CheckpointError`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = read_tokenizer_config(folder)
        added = {token.content: token.id for token in _added_tokens(folder)} or {
            token.content: number for number, token in config.added_tokens_decoder.items()
        }
        self.controls = {literal: number for literal, number in added.items() if not is_text(literal)}
        self.special = {name: text_of(token) for name in _SPECIAL if (token := getattr(config, name)) is not None}
        self.templates = dict(_templates(folder, config.chat_template))
        self.response_template = config.response_template

    def template_for(self, *, tools: bool) -> ChatTemplate:
        """The template for requests with or without tools, as transformers chooses it."""
        for name in ("tool_use", "default") if tools else ("default", "tool_use"):
            if name in self.templates:
                return self.templates[name]
        raise CheckpointError(
            f"{self._folder}: none of its chat templates is called default: {', '.join(self.templates)}"
        )


def is_text(content: str) -> bool:
    """Whether an added token is whitespace or one byte, so that it is ordinary text and not a control token."""
    return content.replace("▁", " ").isspace() or _BYTE.fullmatch(content) is not None


def text_of(token: str | Token) -> str:
    """The literal of a special token."""
    return token if isinstance(token, str) else token.content


def read_tokenizer_config(folder: Path, file: str = "tokenizer_config.json") -> TokenizerConfig:
    """The tokenizer_config.json of a folder, with all defaults when there is none. Raises `CheckpointError`."""
    declared = {name: value for name, value in read_optional(folder / file).items() if value is not None}
    try:
        return msgspec.convert(declared, TokenizerConfig, str_keys=True)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder / file} is not a tokenizer config: {error}") from error


def _added_tokens(folder: Path) -> list[Token]:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return []
    try:
        # The decoder skips the vocabulary, which is nearly all of the file.
        return msgspec.json.decode(read_tokenizer_file(file), type=_TokenizerJson).added_tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as a tokenizer: {error}") from error


def _templates(folder: Path, declared: _Templates) -> Iterator[tuple[str, ChatTemplate]]:
    """The templates by name. A file of its own wins over a config."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    files = {name: file for name, file in files.items() if file.is_file()}
    for name, file in files.items():
        yield name, ChatTemplate(file.name, read_text(file))
    if files:
        return
    where = "tokenizer_config.json"
    if declared is None:
        where = "chat_template.json"
        declared = read_tokenizer_config(folder, where).chat_template
    if isinstance(declared, list):
        declared = {template.name: template.template for template in declared}
    if isinstance(declared, str):
        declared = {"default": declared}
    for name, source in (declared or {}).items():
        yield name, ChatTemplate(f"chat_template in {where}", source)
