"""Detects which format a checkpoint was trained on, from its config, tokenizer and chat template, and says why.

A format that writes the same prompts as the checkpoint's own chat template is the checkpoint's format. Any other
template becomes a `jinja` format. Without a template, the model in config.json decides, or else the tokenizer's control
tokens. The folder's name never counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.checkpoints.fields import Fields
from dovetail.checkpoints.files import read_optional
from dovetail.checkpoints.generation import read_eos_ids
from dovetail.checkpoints.tokenizer_files import TokenizerFiles
from dovetail.errors import CheckpointError, DovetailError, RenderError
from dovetail.formats.base import Format
from dovetail.formats.declarations import in_typescript

if TYPE_CHECKING:
    from dovetail.formats.derived.jinja import JinjaFormat

#: Model, as config.json names it (model_type or architecture, in small letters without underscores) -> format.
_MODELS = {
    "kimik25": "kimi_k25",
    "kimik3": "kimi_k3",
    "deepseekv32": "deepseek_v32",
    "deepseekv4": "deepseek_v4",
    "deepseekv41": "deepseek_v41",
    "gptoss": "harmony",
    "inkling": "inkling",
}
#: Formats whose models ship code instead of a chat template. A template in such a checkpoint is not the model's own.
_CODED = frozenset(("deepseek_v32", "deepseek_v4", "deepseek_v41"))
#: Format -> control tokens by which its tokenizer is recognised. The first format whose tokens are all there wins.
_SIGNATURES = {
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    "kimi_k25": ("<|im_middle|>", "<|tool_calls_section_begin|>", "<think>", "<|media_begin|>"),
    "kimi_k2_thinking": ("<|im_middle|>", "<|tool_calls_section_begin|>", "<think>"),
    "kimi_k2": ("<|im_middle|>", "<|tool_calls_section_begin|>"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
    "deepseek_v41": ("｜DSML｜", "<｜System｜>"),
    "inkling": ("<|message_model|>", "<|content_invoke_tool_json|>", "<|content_model_end_sampling|>"),
}


class _Checkpoint(TokenizerFiles):
    """The tokenizer files of a folder, and which model its config.json declares."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        config = Fields(read_optional(folder / "config.json"), f"{folder}/config.json")
        model_type, architectures = config.text("model_type"), config.items("architectures") or []
        #: The model's name in config.json.
        self.model_name = model_type or ", ".join(map(str, architectures))
        #: The format of that model, None when the name decides nothing.
        self.declared = self._declared(model_type or "", *architectures)
        ids = {number for declared in read_eos_ids(folder, config) for number in declared}
        #: The control tokens that end a turn.
        self.ends = [literal for literal, number in self.controls.items() if number in ids]
        self.ends += [self.special[name] for name in ("eos_token",) if name in self.special]

    def _declared(self, *names: object) -> str | None:
        for name in names:
            format_name = _MODELS.get(str(name).partition("For")[0].lower().replace("_", ""))
            if format_name is not None:
                v41 = format_name == "deepseek_v4" and "<｜System｜>" in self.controls
                return "deepseek_v41" if v41 else format_name
        return None


def detect(folder: Path, families: Mapping[str, type[Format]], *, generic_tools: bool = True) -> Format:
    """The format of the checkpoint in `folder`. Raises `CheckpointError` when its files do not determine one.

    `generic_tools`: whether a template that shows no tools gets them in the generic way.
    """
    checkpoint = _Checkpoint(folder)
    if not checkpoint.controls:
        raise CheckpointError(f"{folder}: neither tokenizer.json nor tokenizer_config.json declares control tokens")
    return (
        _by_template(checkpoint, families, generic_tools) if checkpoint.templates else _by_names(checkpoint, families)
    )


def with_template(name: str, folder: Path, families: Mapping[str, type[Format]]) -> Format:
    """The chat template of the checkpoint in `folder`, as the format of the family `name`, which has no other prompts.

    Raises `CheckpointError` if there is no template whose calls that family reads.
    """
    where = f"{name} has no prompts of its own, they come from the model's chat template"
    if not _Checkpoint(folder).templates:
        raise CheckpointError(
            f"{where}, and {folder} has none: add chat_template.jinja, or name a format that writes prompts: "
            f"{', '.join(each for each, kind in families.items() if kind.renders())}"
        )
    detected = detect(folder, families, generic_tools=False)
    if getattr(detected, "family_name", detected.name) != name:
        raise CheckpointError(
            f"{where}, and {folder}'s template is not {name}'s: {detected.because}. Leave --format out, or replace it"
        )
    return detected


def _by_names(checkpoint: _Checkpoint, families: Mapping[str, type[Format]]) -> Format:
    declared = checkpoint.declared
    if declared is None:
        for name, signature in _SIGNATURES.items():
            if checkpoint.controls.keys() >= set(signature):
                reason = f"it has no chat template, and its tokenizer has {', '.join(signature)}"
                return families[name]().spelled_for(checkpoint.controls).because_of(reason)
        raise CheckpointError(
            f"{checkpoint.folder}: no format found. It has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), its config.json names no model whose format is known, and its tokenizer's control "
            f"tokens match no format. Name the format with --format: {', '.join(families)}"
        )
    fmt = families[declared]().spelled_for(checkpoint.controls)
    if missing := sorted(_controls(fmt) - checkpoint.controls.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: config.json says {checkpoint.model_name}, but the tokenizer lacks "
            f"{', '.join(missing)}"
        )
    return fmt.because_of(f"its config.json says {checkpoint.model_name}, and it has no chat template")


def _check_template(own: Format) -> None:
    """Raise `CheckpointError` for a chat template that does too much with the shortest conversation."""
    from dovetail.formats.derived.limits import LimitReached

    try:
        own.render([{"role": "user", "content": "hi"}])
    except LimitReached as error:
        raise CheckpointError(f"the model cannot answer even `hi`: {error.message}") from error
    except RenderError:  # it refuses this one
        return


def own_template(folder: Path, families: Mapping[str, type[Format]]) -> tuple[JinjaFormat | None, Any]:
    """The chat template of the checkpoint in `folder` as a format, and its `response_template`; None for either."""
    checkpoint = _Checkpoint(folder)
    own = _own_template(checkpoint, families, generic_tools=False) if checkpoint.templates else None
    return own, checkpoint.response_template


def _own_template(checkpoint: _Checkpoint, families: Mapping[str, type[Format]], *, generic_tools: bool) -> JinjaFormat:
    from dovetail.formats.derived.jinja import jinja
    from dovetail.formats.derived.template import Template

    default, with_tools = checkpoint.template_for(tools=False), checkpoint.template_for(tools=True)
    return jinja(
        Template(default.source, checkpoint.special),
        checkpoint.controls,
        [family() for family in families.values()],
        with_tools=Template(with_tools.source, checkpoint.special),
        ends=checkpoint.ends,
        generic_tools=generic_tools,
        response_template=checkpoint.response_template,
    )


def _by_template(checkpoint: _Checkpoint, families: Mapping[str, type[Format]], generic_tools: bool) -> Format:
    own = _own_template(checkpoint, families, generic_tools=generic_tools)
    default, with_tools = checkpoint.template_for(tools=False), checkpoint.template_for(tools=True)
    _check_template(own)
    differences: dict[str, str] = {}
    for name, kind in families.items():
        fmt = kind().spelled_for(checkpoint.controls)
        if not kind.renders() or not _controls(fmt) <= checkpoint.controls.keys():
            continue
        differences[name] = _difference(fmt, own)
        if not differences[name]:
            return fmt.because_of(f"it writes what the checkpoint's {default.file} does")
    declared = checkpoint.declared
    if declared in _CODED and declared == own.family_name:
        return families[declared]().because_of(
            f"its config.json says {checkpoint.model_name}, whose prompts come from code; the {default.file} is "
            "another model's"
        )
    other = next((name for name in (declared, own.family_name) if name in differences), None)
    differs = "" if other is None else f"; {other} differs: {differences[other]}"
    refused = f"; its response_template is not used, because {own.refusal}" if own.refusal else ""
    return own.because_of(f"it has a {with_tools.file} of its own; {_reads(own)}{refused}{differs}")


def _reads(own: JinjaFormat) -> str:
    """How the calls that a template shows are read, or why they are not."""
    from dovetail.formats.derived.differencing import NAME as DERIVED
    from dovetail.formats.derived.generic import NAME as GENERIC
    from dovetail.formats.response_templates.families import NAME as RESPONSE_TEMPLATE

    if own.family_name == RESPONSE_TEMPLATE:
        return f"its calls are read as its response_template says ({own.call_opening!r})"
    if own.family_name == DERIVED:
        return f"the layout of its calls was derived by differencing ({own.call_opening!r})"
    if own.family_name == GENERIC:
        return f"it shows no tools: they, calls and results are text in a generic layout ({own.call_opening!r})"
    if own.reads_calls:
        return f"it shows calls as {own.family_name} reads them ({own.call_opening!r})"
    return f"tool calls are not read, because {own.derived.derivation.reason}"


# -- whether a format writes the prompts of a template ----------------------------------------------------------------


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
    """An assistant's message with calls, and their results."""
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
    """The prompt that a request becomes, None when it is refused."""
    try:
        messages, _ = fmt.repair(case.messages, case.tools)
        opens = messages[-1]["role"] != "assistant"
        return fmt.render(messages, case.tools, thinking=thinking, add_generation_prompt=opens, **options).text
    except DovetailError:
        return None


def _difference(fmt: Format, own: JinjaFormat) -> str:
    """The first case in which `fmt` and the template write different prompts, "" when there is none."""
    for case in _CASES:
        # K2.5's template needs a variable that the code of its own tokenizer computes.
        declared = {"tools_ts_str": in_typescript(case.tools)} if case.tools else {}
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
    """The control tokens that `fmt` writes into prompts."""
    prompts = (fmt.render(fmt.repair(case.messages, case.tools)[0], case.tools) for case in _CASES)
    return {segment.text for prompt in prompts for segment in prompt.segments if segment.control}
