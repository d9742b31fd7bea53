"""The reader of YAML files: its plain values, and what it refuses as costly or ambiguous."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import PlanError
from dovetail.plan import recipe
from dovetail.plan.yaml_config import read_yaml


def read(folder: Path, text: str | bytes) -> Any:
    file = folder / "it.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(file, "config file")


def test_recipes_read_as_pyyaml_reads_them() -> None:
    for file in recipe.FOLDER.glob("*.yaml"):
        assert read_yaml(file, "recipe") == yaml.safe_load(file.read_bytes())


# Without texts that YAML 1.1, which PyYAML writes, and the core schema resolve differently: unusual numbers.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8).filter(
    lambda text: not text[:1].isdigit() and text[:1] not in "+-."
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, flow=st.sampled_from([None, True, False]))
def test_every_value_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, value: Any, flow: bool | None
) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert read(folder, yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)) == value
    assert read(folder, json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("NULL", None),
        ("True", True),
        ("off", "off"),
        ("yes", "yes"),
        ("-12", -12),
        ("0", 0),
        ("1.", 1.0),
        (".5e1", 5.0),
        ("1e5", 100000.0),
        ("'1'", "1"),
        ("007", "007"),
        ("0x1f", "0x1f"),
        ("0b_", "0b_"),
        ("1_000", "1_000"),
        ("1:2:3", "1:2:3"),
        ("2001-99-99", "2001-99-99"),
        ("2001-01-01", "2001-01-01"),
        (".nan", ".nan"),
        (".inf", ".inf"),
        ("1e400", "1e400"),
        ("9" * 5000, "9" * 5000),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_plain_word_is_resolved_by_the_core_schema(tmp_path: Path, text: str, value: Any) -> None:
    value_read = read(tmp_path, f"a: {text}")["a"]
    assert (value_read, type(value_read)) == (value, type(value))


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100, r"nested deeper than 32 \(line 1\)"),
        (
            "[" * 200_000,
            r"nested deeper than 32 \(line 1\)|maximum nesting depth",
        ),  # the second is PyYAML 6.0.4's
        ("{a: " * 200_000, r"nested deeper than 32"),
        ("- " * 200_000, r"nested deeper than 32"),
        ("? " * 200_000, r"nested deeper than 32"),
        (BOMB, r"anchors and aliases are not supported \(line 1\)"),
        ("a: *b", r"anchors and aliases are not supported"),
        ("port: !!int abc", r"the tag tag:yaml.org,2002:int is not supported"),
        ("port: !!timestamp x", r"is not supported"),
        ("port: 1\nhost: a\nport: 2", r"'port' is repeated \(line 3\)"),
        ("{[a]: b}", r"a key must be text"),
        ("a: 1\n--- \nb: 2", r"more than one document \(line 2\)"),
        ("a: [", r"did not find expected node"),
        (b"a: \xff", r"UTF-8"),
        ('a: "\\ud800"', r"invalid Unicode"),
        ("# " + "x" * 2**20, r"^config file .* is larger than 1 MiB"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_costly_and_ambiguous_files_are_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        read(tmp_path, text)
    assert refusal.value.message.startswith(f"config file {tmp_path / 'it.yaml'} is ")
    assert "\n" not in refusal.value.message and len(refusal.value.message) < 500


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for file, message in ((tmp_path / "nowhere", "No such file"), (tmp_path, "Is a directory"), (Path("a\0b"), "null")):
        with pytest.raises(PlanError, match=rf"^recipe .* cannot be read: .*{message}"):
            read_yaml(file, "recipe")
