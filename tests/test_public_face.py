"""Importing dovetail is cheap, and what is installed is what the design promises."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

import dovetail

ROOT = Path(__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    """Top-level packages that are loaded after `statement` in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*(name.partition('.')[0] for name in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_public_names_are_there() -> None:
    for name in dovetail.__all__:
        assert getattr(dovetail, name) is not None
        assert name in dir(dovetail)
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        dovetail.nonesuch  # noqa: B018


def test_importing_dovetail_imports_nothing_else() -> None:
    foreign = imported_by("import dovetail") - set(sys.stdlib_module_names) - {"dovetail", "sitecustomize"}
    assert {name for name in foreign if not name.startswith("_")} == set()


def test_help_loads_no_library() -> None:
    loaded = imported_by(
        "import contextlib, dovetail.cli\nwith contextlib.suppress(SystemExit): dovetail.cli.main(['-h'])"
    )
    assert not loaded & {"msgspec", "rich", "starlette", "torch", "tokenizers", "yaml"}


def test_a_plan_and_a_prompt_need_no_torch() -> None:
    assert "torch" not in imported_by(
        "import dovetail.plan, dovetail.cli.render, dovetail.cli.parse, dovetail.cli.plan"
    )


def test_the_base_install_has_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = " ".join(project["dependencies"])
    assert not any(heavy in named for heavy in ("torch", "numpy", "safetensors", "transformers"))
    assert "torch==2.13.0" in project["optional-dependencies"]["engine"]
    assert metadata("dovetail")["Version"] == dovetail.__version__
