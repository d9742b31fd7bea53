"""The file of several models: what an entry may have, and what is refused, with the entry and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail.errors import PlanError
from dovetail.plan import resolve
from dovetail.plan.models_file import ModelEntry, read_models
from dovetail.plan.resolve import resolve_server

DEMO = Path(dovetail.__file__).parent / "data" / "demo" / "target"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.yaml"


def test_entries_are_in_the_words_of_a_plan(file: Path) -> None:
    (file.parent / "weights").mkdir()
    file.write_text(
        "qwen:\n  target: ./weights\n  engine: [http://a:8000, dns://b:8000]\n  aliases: [haiku, claude-*]\n"
        "  adapters: [sql]\n  max_model_len: 4096\n  strict: off\n  recipe: none\n"
        "bge:\n  engine: http://c:8000\n  passes: [embeddings, rerank]\n"
    )
    qwen, bge = read_models(file)
    assert qwen == ModelEntry(
        "qwen",
        {
            "target": str(file.parent / "weights"),
            "engine": "http://a:8000,dns://b:8000",
            "context": 4096,
            "strict": "off",
            "served_model_name": "qwen",
        },
        aliases=("haiku", "claude-*"),
        adapters=("sql",),
        recipe="none",
    )
    assert (bge.name, bge.passes, bge.settings["engine"]) == ("bge", ("embeddings", "rerank"), "http://c:8000")


def test_a_plan_says_which_values_come_from_the_file(file: Path) -> None:
    file.write_text(f"one:\n  target: {DEMO}\n  strict: names\n")
    [entry] = read_models(file)
    plan = resolve(None, {"grace": 5.0}, entry=entry.settings)
    found = {name: (plan.settings[name].value, plan.settings[name].source) for name in ("served_model_name", "grace")}
    assert found == {"served_model_name": ("one", "file of models"), "grace": (5.0, "command line")}
    assert plan.settings["strict"].source == "file of models" and plan.settings["engine"].value == "embedded"


def test_a_server_has_no_settings_of_models(file: Path) -> None:
    server = resolve_server({"port": 8001})
    assert (server.value("port"), server.value("host"), server.value("target")) == (8001, "127.0.0.1", None)
    file.write_text("strict: off")
    for options, config in (({"strict": "off"}, None), ({"engine": "vllm"}, None), ({}, file)):
        with pytest.raises(PlanError, match="belongs to a model: set it in the file that --models names"):
            resolve_server(options, config=config)


REFUSED = {
    "nothing": ("", r"must have an entry for each model, like `qwen: \{target: "),
    "a list": ("[a, b]", "must have an entry for each model"),
    "no YAML": ("a: [", r"is not valid YAML: .* line 2"),
    "a name twice": ("a: {target: x/y}\na: {target: x/y}", r"the key 'a' is repeated \(line 2\)"),
    "no entry": ("a:", "a: it must map settings to values"),
    "a pattern as a name": ("'a*': {target: x/y}", "without \\*"),
    "an unknown setting": ("a: {target: x/y, stricd: off}", "a: there is no setting 'stricd'; did you mean strict?"),
    "an unknown field": ("a: {target: x/y, alias_: [b]}", "a: there is no field 'alias_'; did you mean aliases?"),
    "a wrong value": ("a: {target: x/y, strict: on}", "a: strict is 'on': invalid enum value"),
    "a wrong kind": ("a: {target: x/y, aliases: b}", r"a: expected array, got str - at \$.aliases"),
    "an empty name": ("a: {target: x/y, aliases: ['']}", r"a: expected str of length >= 1 - at \$.aliases"),
    "a server's setting": ("a: {target: x/y, port: 1}", r"port is a setting of the server: .*\(--port\)"),
    "the plan's alias": ("a: {target: x/y, alias: b=a}", "a: alias has no place here: use aliases"),
    "another name": ("a: {target: x/y, served_model_name: b}", "use the entry's own name"),
    "no target": ("a: {engine: vllm}", "a: target is missing: the model's folder"),
    "an alias twice": (
        "a: {target: x/y, aliases: [c]}\nb: {target: x/y, aliases: [c]}",
        "b: the name 'c' belongs to a",
    ),
    "a name as an alias": ("a: {target: x/y}\nb: {target: x/y, aliases: [a]}", "b: the name 'a' belongs to a already"),
    "one's own alias": ("a: {target: x/y, aliases: [a]}", "the name 'a' belongs to itself already"),
    "an adapter as an alias": (
        "a: {target: x/y, engine: vllm, adapters: [s]}\nb: {target: x/y, aliases: [s]}",
        "b: the name 's' belongs to a already",
    ),
    "adapters without vLLM": ("a: {target: x/y, engine: embedded, adapters: [s]}", "a: adapters need vLLM"),
    "adapters without an engine": ("a: {target: x/y, adapters: [s]}", "a: adapters need vLLM: set engine to vllm"),
    "an engine that is none": ("a: {target: x/y, engine: ftp://b}", "a: engine is 'ftp://b': it can be embedded"),
    "passed to no engine": ("a: {passes: [embeddings]}", "a: passes needs an engine that runs"),
    "passed and written": (
        "a: {engine: http://b, passes: [rerank], strict: off}",
        "a: strict is for models that write",
    ),
    "passed what is not": ("a: {engine: http://b, passes: [songs]}", "a: invalid enum value 'songs'"),
    "passed adapters": ("a: {engine: http://b, passes: [rerank], adapters: [s]}", "are for models that write"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(PlanError, match=message) as refused:
        read_models(file)
    assert str(file) in refused.value.message


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        read_models(file)
