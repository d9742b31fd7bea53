"""The file of several models (`serve --models`): read at the start, and again on SIGHUP.

qwen:                                    # the model's name in the API
  target: Qwen/Qwen3-8B                  # and every other setting of a plan that is not the server's
  engine: [http://10.0.0.1:8000, dns://vllm.example:8000]
  aliases: [haiku, claude-*]
  adapters: [sql]                        # LoRA adapters of its vLLM
bge-m3:
  engine: http://10.0.0.3:8000
  passes: [embeddings]                   # passed through as it is
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError
from dovetail.plan.options import BY_NAME, validated
from dovetail.plan.outcome import Plan
from dovetail.plan.yaml_config import read_yaml

#: What an engine may have beside completions.
Passed = Literal["embeddings", "rerank", "transcriptions"]

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Names = list[_Name]
#: What an entry has instead of settings of the plan that name the model: the field to use.
_INSTEAD = {
    "served_model_name": "the entry's own name",
    "alias": "aliases",
    "accept_any_model": 'aliases: ["*"]',
    "model": "target",
}
#: The settings of a model that is only passed through.
_OF_PASSED = ("engine", "engine_api_key_file")


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    aliases: _Names = []
    adapters: _Names = []
    passes: Annotated[list[Passed], Meta(min_length=1)] | None = None
    recipe: _Name | None = None


class ModelEntry(msgspec.Struct, frozen=True):
    """One model: its names, and its settings as a layer of a plan.

    `passes`: what is passed through to its engine as it is; () for a model that writes.
    """

    name: str
    settings: dict[str, Any]
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    passes: tuple[Passed, ...] = ()
    recipe: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *self.adapters)


class ModelsFile(NamedTuple):
    """A file of models and what it had when it was read. `server`: the plan of their server. `options`, `config`: its
    settings, as the command line and a config file have them."""

    path: Path
    entries: list[ModelEntry]
    server: Plan
    options: Mapping[str, Any]
    config: Path | None


def read_models(file: Path) -> list[ModelEntry]:
    """The models of `file`. Raises `PlanError`, which names the entry and the field, and what may stand there."""
    content = read_yaml(file, "file of models")
    if not isinstance(content, dict) or not content:
        raise PlanError(
            f"file of models {file} must have an entry for each model, like `qwen: {{target: Qwen/Qwen3-8B}}`"
        )
    owners: dict[str, str] = {}
    entries = []
    for name, fields in content.items():
        try:
            entry = _entry(name, fields, file)
            for each in entry.names:
                if each in owners:
                    whose = "itself" if owners[each] == name else owners[each]
                    raise PlanError(f"the name {each!r} belongs to {whose} already: every model needs names of its own")
                owners[each] = name
        except PlanError as error:
            raise PlanError(f"file of models {file}: {name:.80}: {error.message}") from None
        entries.append(entry)
    return entries


def _entry(name: str, content: Any, file: Path) -> ModelEntry:
    if not 1 <= len(name) <= 256 or "*" in name:
        raise PlanError("a model's name is 1 to 256 characters, without *")
    if not isinstance(content, dict):
        raise PlanError(f"it must map settings to values, like `target: Qwen/Qwen3-8B`, and is {content!r:.80}")
    own = _Fields.__struct_fields__
    try:
        fields = msgspec.convert({field: value for field, value in content.items() if field in own}, _Fields)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise PlanError(f"{reason[:1].lower()}{reason[1:]}") from None
    settings = {field: value for field, value in content.items() if field not in own}
    for field in settings:
        _check_field(field, passed=fields.passes is not None)
    if isinstance(settings.get("engine"), list):
        settings["engine"] = ",".join(map(str, settings["engine"]))
    try:
        settings, _ = validated(settings, "it", file.absolute().parent)
    except PlanError as error:
        raise PlanError(error.message.removeprefix("it: ")) from None
    _check_engine(settings.get("engine"), fields)
    if fields.passes is None and "target" not in settings:
        raise PlanError("target is missing: the model's folder, GGUF file or hub id, for its prompts and tokens")
    return ModelEntry(
        name,
        {**settings, "served_model_name": name},
        tuple(fields.aliases),
        tuple(fields.adapters),
        tuple(fields.passes or ()),
        fields.recipe,
    )


def _check_field(field: str, *, passed: bool) -> None:
    if field in _INSTEAD:
        raise PlanError(f"{field} has no place here: use {_INSTEAD[field]}")
    if field in BY_NAME and BY_NAME[field].of_server:
        flag = f"--{field.replace('_', '-')}"
        raise PlanError(f"{field} is a setting of the server: it stays on the command line ({flag})")
    if passed and field not in _OF_PASSED:
        raise PlanError(f"{field} is for models that write: with passes there are {', '.join(_OF_PASSED)} and aliases")
    near = difflib.get_close_matches(field, _Fields.__struct_fields__, n=1, cutoff=0.7)
    if field not in BY_NAME and near:
        raise PlanError(f"there is no field {field!r:.80}; did you mean {near[0]}?")


def _check_engine(engine: str | None, fields: _Fields) -> None:
    there = engine is not None and "://" in engine
    if fields.passes is not None and not there:
        raise PlanError(
            f"passes needs an engine that runs, like http://127.0.0.1:8001, and can be {', '.join(get_args(Passed))}"
        )
    if fields.passes is not None and fields.adapters:
        raise PlanError("adapters are for models that write, and not for what is passed through")
    if fields.adapters and not (there or engine == "vllm"):
        raise PlanError(f"adapters need vLLM: set engine to vllm or to the URL of one, not {engine or 'leave it out'}")
