"""The source distribution has everything that its tests read and import, so that a packager can run them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SDIST = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
#: What a build adds by itself.
ALWAYS = {"pyproject.toml", "README.md", "LICENSE"}
#: A path below the root of the project, as tests write it.
_PATH = re.compile(r"""(?:ROOT|Path\(__file__\)\.parents\[\d\]) / "([^"/]+)""")


def packed() -> set[str]:
    return ALWAYS | {path.strip("/") for path in SDIST["include"]}


def test_what_is_packed_exists() -> None:
    assert [name for name in sorted(packed()) if not (ROOT / name).exists()] == []


def test_folders_that_tests_import_are_packed() -> None:
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    imported = set[str]()
    for file in [*ROOT.glob("tests/**/*.py"), ROOT / "conftest.py"]:
        for node in ast.walk(ast.parse(file.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {name.partition(".")[0] for name in names}
    assert "benchmarks" in imported and imported & folders <= packed()


def test_files_that_tests_read_are_packed() -> None:
    read = {name for file in ROOT.glob("tests/**/*.py") for name in _PATH.findall(file.read_text())}
    assert "docs" in read
    assert {name for name in read if (ROOT / name).exists() and not name.startswith(".")} <= packed()
