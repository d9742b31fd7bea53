"""Which format a checkpoint was trained on, and why: by its config, tokenizer and chat template, never by its name.

A format that writes what the checkpoint's own chat template writes is it. Any other template makes a `jinja` format.
Without a template, config.json says which model it is, or the tokenizer's control tokens do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from dovetail.errors import CheckpointError, DovetailError
from dovetail.formats import typescript
from dovetail.formats.base import Format

if TYPE_CHECKING:
    from dovetail.formats.jinja import JinjaFormat

#: Models as config.json calls them (model_type or architecture, in small letters), and their formats.
_MODELS = {
    "kimik25": "kimi_k25",
    "kimik3": "kimi_k3",
    "deepseekv32": "deepseek_v32",
    "deepseekv4": "deepseek_v4",
    "deepseekv41": "deepseek_v41",
    "gptoss": "harmony",
}
#: Formats whose models ship code in place of a chat template: what lies there is somebody else's.
_CODED = frozenset(("deepseek_v32", "deepseek_v4", "deepseek_v41"))
#: Control tokens that together only one format's tokenizer has. Where several fit, it is the first.
_SIGNATURES = {
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    "kimi_k25": ("<|im_middle|>", "<|tool_calls_section_begin|>", "<think>", "<|media_begin|>"),
    "kimi_k2_thinking": ("<|im_middle|>", "<|tool_calls_section_begin|>", "<think>"),
    "kimi_k2": ("<|im_middle|>", "<|tool_calls_section_begin|>"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
    "deepseek_v41": ("｜DSML｜", "<｜System｜>"),
}


def look(folder: Path, families: Mapping[str, type[Format]]) -> Format:
    """The format of the checkpoint in `folder`. Raises `CheckpointError` when nothing in there says which it is."""
    checkpoint = Checkpoint(folder)
    if not checkpoint.controls:
        raise CheckpointError(f"{folder}: neither tokenizer.json nor tokenizer_config.json declares control tokens")
    return (_by_template if checkpoint.templates else _by_names)(checkpoint, families)


def _by_names(checkpoint: Checkpoint, families: Mapping[str, type[Format]]) -> Format:
    named = checkpoint.model
    if named is None:
        for name, signature in _SIGNATURES.items():
            if checkpoint.controls.keys() >= set(signature):
                why = f"it has no chat template, and its tokenizer has {', '.join(signature)}"
                return families[name]().because_of(why)
        raise CheckpointError(
            f"{checkpoint.folder}: no format found. It has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), its config.json names no model whose format is known, and its tokenizer's control "
            f"tokens are those of none. Name the format with --format: {', '.join(families)}"
        )
    fmt = families[named]()
    if missing := sorted(_controls(fmt) - checkpoint.controls.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: config.json says {checkpoint.says}, but the tokenizer lacks {', '.join(missing)}"
        )
    return fmt.because_of(f"its config.json says {checkpoint.says}, and it has no chat template")


def _by_template(checkpoint: Checkpoint, families: Mapping[str, type[Format]]) -> Format:
    from dovetail.formats.jinja import jinja
    from dovetail.formats.template import Template

    default, with_tools = checkpoint.template_for(tools=False), checkpoint.template_for(tools=True)
    own = jinja(
        Template(default.source, checkpoint.special),
        checkpoint.controls,
        [family() for family in families.values()],
        with_tools=Template(with_tools.source, checkpoint.special),
        ends=checkpoint.ends,
    )
    differences: dict[str, str] = {}
    for name, kind in families.items():
        fmt = kind()
        if kind._render is Format._render or not _controls(fmt) <= checkpoint.controls.keys():
            continue
        differences[name] = _difference(fmt, own)
        if not differences[name]:
            return fmt.because_of(f"it writes what the checkpoint's {default.file} does")
    named = checkpoint.model
    if named in _CODED and named == own.family_name:
        return families[named]().because_of(
            f"its config.json says {checkpoint.says}, whose prompts come from code: the {default.file} is not its own"
        )
    reads = (
        f"it shows calls as {own.family_name} reads them ({own.call_opening!r})"
        if own.call_opening
        else "it shows calls of no family"
    )
    other = next((name for name in (named, own.family_name) if name in differences), None)
    differs = "" if other is None else f"; {other} differs: {differences[other]}"
    return own.because_of(f"it has a {with_tools.file} of its own; {reads}{differs}")


# -- whether a format writes what a template does ---------------------------------------------------------------------


class _Case(NamedTuple):
    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f'{name}: "all" <of> it, é',
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what for"},
                    "limit": {"type": "integer", "default": 3},
                },
                "required": ["query"],
            },
        },
    }
    for name in ("search", "find-all")
]
_SYSTEM, _USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is it?\n"}
_ANSWER = {"role": "assistant", "content": "That."}
_THOUGHT = {**_ANSWER, "reasoning_content": "They ask."}


def _round(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Calls and their results."""
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": '{"query": "é", "limit": 2}'}}
        for i, name in enumerate(names)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{i}", "name": name, "content": f"found {i}"}
        for i, name in enumerate(names)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls, **more}, *results]


_CASES = (
    _Case("a question", [_USER]),
    _Case("a system message", [_SYSTEM, _USER]),
    _Case("two turns", [_SYSTEM, _USER, _ANSWER, _USER]),
    _Case("reasoning", [_USER, _THOUGHT, _USER]),
    _Case("an answer", [_USER, _THOUGHT]),
    _Case("tools", [_USER], _TOOLS),
    _Case("tools and a system message", [_SYSTEM, _USER], _TOOLS),
    _Case("a call", [_USER, *_round("search")], _TOOLS),
    _Case("two calls", [_SYSTEM, _USER, *_round("search", "find-all"), _ANSWER, _USER], _TOOLS),
    _Case("reasoning before a call", [_USER, *_round("search", reasoning_content="I should look.")], _TOOLS),
)


def _rendered(fmt: Format, case: _Case, thinking: bool, **options: Any) -> str | None:
    """The prompt that a client's request becomes; None if it is refused."""
    try:
        messages, _ = fmt.repair(case.messages, case.tools)
        opens = messages[-1]["role"] != "assistant"
        return fmt.render(messages, case.tools, thinking=thinking, add_generation_prompt=opens, **options).text
    except DovetailError:
        return None


def _difference(fmt: Format, own: JinjaFormat) -> str:
    """The first case in which `fmt` does not write what the template does; "" if there is none."""
    for case in _CASES:
        # What the code of K2.5's own tokenizer gives to its template.
        declared = {"tools_ts_str": typescript.declare(case.tools)} if case.tools else {}
        options = {name: value for name, value in declared.items() if name in own.template_options}
        for thinking in (True, False) if own.switches else (True,):
            ours, theirs = _rendered(fmt, case, thinking), _rendered(own, case, thinking, **options)
            if ours != theirs:
                where = f"{case.name}{'' if thinking else ' without thinking'}"
                return f"{where}: {_excerpts(ours, theirs)}"
    return ""


def _excerpts(ours: str | None, theirs: str | None) -> str:
    if ours is None or theirs is None:
        return "it refuses that" if ours is None else "the template refuses that"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"it writes {ours[at : at + 40]!r}, and the template {theirs[at : at + 40]!r}"


def _controls(fmt: Format) -> set[str]:
    """The control tokens that `fmt` writes."""
    prompts = (fmt.render(fmt.repair(case.messages, case.tools)[0], case.tools) for case in _CASES)
    return {segment.text for prompt in prompts for segment in prompt.segments if segment.control}


# -- the files --------------------------------------------------------------------------------------------------------


class Checkpoint:
    """What the small files of a checkpoint's folder say. Files that are not there say nothing.

    Raises `CheckpointError` for those that are broken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = _read(folder / "config.json", _Config)
        self._generation = _read(folder / "generation_config.json", _Config)
        declared = _read(folder / "tokenizer_config.json", _TokenizerConfig)
        added = _read(folder / "tokenizer.json", _Tokenizer).added_tokens
        #: Control tokens' literals and ids, as the tokenizer has them.
        self.controls = {token.content: token.id for token in added} or {
            token.content: number for number, token in declared.added_tokens_decoder.items()
        }
        #: What templates call some of them.
        self.special = {
            name: token if isinstance(token, str) else token.content
            for name in _SPECIAL
            if (token := getattr(declared, name)) is not None
        }
        #: Chat templates by name.
        self.templates = dict(_templates(folder, declared.chat_template))

    @property
    def says(self) -> str:
        """What config.json calls the model."""
        return self._config.model_type or ", ".join(self._config.architectures)

    @property
    def model(self) -> str | None:
        """The format that this is the name of, if it is one's."""
        for word in (self._config.model_type or "", *self._config.architectures):
            name = _MODELS.get(word.partition("For")[0].lower().replace("_", ""))
            if name is not None:
                return "deepseek_v41" if name == "deepseek_v4" and "<｜System｜>" in self.controls else name
        return None

    @property
    def ends(self) -> list[str]:
        """The control tokens that end a turn, as the configurations have it."""
        given = (self._generation.eos_token_id, self._config.eos_token_id)
        numbers = {number for ids in given for number in (ids if isinstance(ids, list) else [ids])}
        ends = [literal for literal, number in self.controls.items() if number in numbers]
        return [*ends, *(self.special[name] for name in ("eos_token",) if name in self.special)]

    def template_for(self, *, tools: bool) -> ChatTemplate:
        """The template for requests with or without tools, as transformers chooses it."""
        for name in ("tool_use", "default") if tools else ("default", "tool_use"):
            if name in self.templates:
                return self.templates[name]
        raise CheckpointError(
            f"{self.folder}: of its chat templates none is called default: {', '.join(self.templates)}"
        )


class ChatTemplate(NamedTuple):
    file: str
    source: str


def _templates(folder: Path, declared: _Templates) -> Iterator[tuple[str, ChatTemplate]]:
    """By name. Those in files of their own come before those in a configuration."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    files = {name: file for name, file in files.items() if file.is_file()}
    for name, file in files.items():
        try:
            yield name, ChatTemplate(file.name, file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read as text: {error}") from error
    if files:
        return
    where = "tokenizer_config.json"
    if declared is None:
        where = "chat_template.json"
        declared = _read(folder / where, _TokenizerConfig).chat_template
    if isinstance(declared, list):
        declared = {template.name: template.template for template in declared}
    if isinstance(declared, str):
        declared = {"default": declared}
    for name, source in (declared or {}).items():
        yield name, ChatTemplate(f"chat_template in {where}", source)


class _Token(msgspec.Struct):
    content: str
    id: int = -1


class _Template(msgspec.Struct):
    name: str
    template: str


_Templates: TypeAlias = str | dict[str, str] | list[_Template] | None
_Special: TypeAlias = str | _Token | None


class _Config(msgspec.Struct):
    model_type: str | None = None
    architectures: list[str] = []
    eos_token_id: int | list[int] | None = None


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Token] = []


class _TokenizerConfig(msgspec.Struct):
    added_tokens_decoder: dict[int, _Token] = {}
    chat_template: _Templates = None
    bos_token: _Special = None
    eos_token: _Special = None
    unk_token: _Special = None
    sep_token: _Special = None
    pad_token: _Special = None
    cls_token: _Special = None
    mask_token: _Special = None


_SPECIAL = tuple(name for name in _TokenizerConfig.__struct_fields__ if name.endswith("_token"))
_File = TypeVar("_File", _Config, _Tokenizer, _TokenizerConfig)


def _read(path: Path, kind: type[_File]) -> _File:
    if not path.is_file():
        return kind()
    try:
        raw = path.read_bytes()
        if kind is _Tokenizer:  # large, nearly all of it the vocabulary, which is only passed over
            return msgspec.json.decode(raw, type=kind)
        # Configurations may hold numbers that JSON has not, such as Infinity; null is as good as nothing.
        held = json.loads(raw)
        if isinstance(held, dict):
            held = {name: value for name, value in held.items() if value is not None}
        return msgspec.convert(held, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is not as such files are: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
