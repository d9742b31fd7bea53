"""What may be set, on a command line, in a config file or in a recipe, and the check that each of them passes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dovetail.errors import PlanError

MAX_DRAFT_TOKENS = 8


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """Every setting that can be asked for. UNSET is "not said"; None is "none", where a setting has that choice."""

    target: str | UnsetType = UNSET
    drafter: str | UnsetType | None = UNSET
    draft_tokens: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)] | UnsetType = UNSET
    format: str | UnsetType = UNSET
    strict: Literal["off", "names", "schema"] | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    host: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    port: Annotated[int, Meta(ge=1, le=65535)] | UnsetType = UNSET
    served_model_name: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    context: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    max_batch: Annotated[int, Meta(ge=1, le=4096)] | UnsetType = UNSET
    dtype: Literal["float32", "bfloat16"] | UnsetType = UNSET
    threads: Annotated[int, Meta(ge=1, le=1024)] | UnsetType = UNSET
    api_key_file: str | UnsetType = UNSET


PATHS = ("target", "drafter", "api_key_file")


def check(values: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """`values` with absolute paths (relative ones start at `folder`). Raises `PlanError` naming `where` and setting."""
    for name in values:
        if name not in Options.__struct_fields__:
            near = difflib.get_close_matches(name, Options.__struct_fields__, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; it may hold {', '.join(Options.__struct_fields__)}"
            raise PlanError(f"{where}: there is no setting {name!r}{hint}")
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, Options)
        except msgspec.ValidationError as error:
            # The library's message ends in a path into our own struct; the setting's name says it better.
            reason = str(error).partition(" - at ")[0].replace("`", "")
            raise PlanError(f"{where}: {name} is {value!r}: {reason[:1].lower()}{reason[1:]}") from error
    checked = dict(values)
    if checked.get("drafter") == "none":
        checked["drafter"] = None
    for name in PATHS:
        if checked.get(name) is not None:
            checked[name] = os.path.normpath(folder / Path(checked[name]).expanduser())
    return checked
