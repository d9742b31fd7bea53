"""`dovetail tune --speculation`: own prompts, recipes of settings, a server that runs, engines that it starts."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from dovetail import cli
from dovetail.cli.own_prompts import MOST, own_prompts
from dovetail.cli.tuned_recipe import Setting, grid, methods, recipe, write
from dovetail.completion import Completion, TokenBatch
from dovetail.errors import InvalidRequest
from dovetail.gateway.observe.recording import Recording, encode
from dovetail.plan import resolve
from dovetail.plan.recipe import read
from tests.demo_server import DEMO, served
from tests.verify.harness import gateway
from tests.verify.model import Model

CHAT = {"messages": [{"role": "user", "content": "Please get the weather for city Paris."}], "temperature": 0.5}
SMALL = ["--matrix", "96 x 1", "--kinds", "prose", "--tokens", "8", "--requests", "1", "--draft-tokens", "3"]


class Stepping(Model):
    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        async for batch in super().complete(completion):
            await asyncio.sleep(0.02)
            yield batch


@pytest.fixture(scope="module")
def model() -> Stepping:
    return Stepping()


@pytest.fixture(scope="module")
def demo(model: Stepping) -> Iterator[str]:
    """A Dovetail whose model is a script of which a step takes a while."""
    with served(gateway(model)) as url:
        yield url


# --- Prompts ----------------------------------------------------------------------------------------------------------


def test_prompts_are_chat_requests_without_their_sampling(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f"{json.dumps(CHAT)}\n\n{json.dumps({**CHAT, 'tools': [], 'tool_choice': 'auto'})}\n")
    assert own_prompts(file) == [
        {"messages": CHAT["messages"]},
        {"messages": CHAT["messages"], "tools": [], "tool_choice": "auto"},
    ]
    many = [{"messages": [{"role": "user", "content": str(i)}]} for i in range(1000)]
    file.write_text("\n".join(map(json.dumps, many)))
    taken = [int(each["messages"][0]["content"]) for each in own_prompts(file)]
    assert len(taken) == MOST and taken[0] < 20 and taken[-1] > 950 and taken == sorted(set(taken))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no request"),
        (f'{json.dumps(CHAT)}\n{{"messages": [', "line 2: it is not JSON"),
        ('["hello"]', "line 1: it is no chat request"),
        ('{"messages": []}', "line 1: it is no chat request"),
        ("\xff", "line 1: it is not JSON"),
    ],
)
def test_prompts_that_cannot_be_used(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(text.encode("latin-1"))
    assert cli.main(["tune", "--speculation", "--prompts", str(file), "--folder", str(tmp_path / "f")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "f").exists()


def test_prompts_of_recordings(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no recording of a chat request"):
        own_prompts(tmp_path)
    with pytest.raises(InvalidRequest, match="nowhere cannot be read"):
        own_prompts(tmp_path / "nowhere")
    common = {
        "id": "a",
        "request_id": "a",
        "model": "m",
        "began": "now",
        "request": msgspec.Raw(json.dumps(CHAT).encode()),
    }
    for name, fields in (("1", {"api": "chat"}), ("2", {"api": "messages"}), ("3", {"api": "chat", "redacted": True})):
        (tmp_path / f"{name}.recording.json").write_bytes(encode(Recording(**common, **fields), 10**6))
    assert own_prompts(tmp_path) == [{"messages": CHAT["messages"]}]
    (tmp_path / "4.recording.json").write_text("{")
    with pytest.raises(InvalidRequest, match=r"4\.recording\.json is no whole JSON file"):
        own_prompts(tmp_path)


# --- Recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_each_setting_is_a_recipe_whose_plan_has_it(tmp_path: Path, engine: str) -> None:
    plan = resolve(None, {"engine": engine, "context": 1024, "kv_cache_dtype": "auto"})
    settings = grid(methods(plan), [1, 3], ["off", "measured"])
    lookup = "suffix" if engine == "embedded" else "ngram"
    assert [each.name for each in settings] == [
        "none",
        "eagle3 1",
        "eagle3 3",
        "eagle3 up to 3",
        f"{lookup} 1",
        f"{lookup} 3",
        f"{lookup} up to 3",
    ]
    for setting in settings:
        write(recipe(plan, setting, "a test"), tmp_path / "recipe.yaml")
        assert read(tmp_path / "recipe.yaml").source == "a test"
        made = resolve(None, {}, recipe=str(tmp_path / "recipe.yaml"))
        assert not made.advice_of("warning")
        assert made.value("target") == str(DEMO / "target") and made.value("engine") == engine
        assert made.value("context") == 1024 and made.value("served_model_name") == "dovetail-demo"
        assert made.value("draft_tokens") == setting.draft_tokens
        if setting.method is None:
            assert made.value("drafter") is None and made.value("method") is None
            continue
        assert made.value("method") == setting.method
        measured = setting.gate == "measured"
        assert (made.value("gate") == "measured", made.value("max_draft_tokens")) == (measured, 3 if measured else None)


def test_a_drafters_own_settings_are_not_given_to_a_lookup() -> None:
    plan = resolve(None, {"draft_sampling": "greedy"})
    assert recipe(plan, Setting("eagle3", 3), "here").settings["draft_sampling"] == "greedy"
    assert "draft_sampling" not in recipe(plan, Setting("suffix", 3), "here").settings


# --- A server that runs -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_runs_is_tuned_as_far_as_requests_can(
    demo: str, model: Stepping, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = tmp_path / "tuned", ["tune", "--speculation", demo, *SMALL, "--folder", str(tmp_path / "tuned")]
    assert cli.main([*words, "--rounds", "1", "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert {each["setting"] for each in result["standings"]} == {"none", "3", "up to 3"}
    assert all(each["rounds"] == 1 and each["tokens_per_second"] > 0 for each in result["standings"]), result
    # Each setting got the same prompts.
    of_rounds = [each for each in model.seen if each.max_tokens == 8]
    prompts = [
        {each.prompt for each in of_rounds if (each.draft_tokens, each.gated) == setting}
        for setting in ((0, True), (3, False), (3, True))
    ]
    assert len(prompts[0]) > 2 and prompts[0] == prompts[1] == prompts[2]
    made = resolve(str(DEMO / "target"), {"drafter": str(DEMO / "drafter")}, recipe=str(folder / "recipe.yaml"))
    assert not made.advice_of("warning")
    chosen = {"none": (0, None), "3": (3, "off"), "up to 3": (3, "measured")}[result["best"]]
    assert made.value("draft_tokens") == chosen[0] and (chosen[1] is None or made.value("gate") == chosen[1])
    assert "serve MODEL --recipe" in printed.err.replace("\n", "")
    assert "decode speed" in (folder / "picture.svg").read_text().replace("&#160;", " ")
    # What was measured stays, and the same command goes on; another one does not.
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([*lines, '{"number": 2, "sett']))
    assert cli.main([*words, "--rounds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["standings"][0]["rounds"] == 2
    assert (folder / "rounds.jsonl").read_text().splitlines()[: len(lines)] == lines
    assert cli.main([*words, "--tokens", "9"]) == 2
    assert "belongs to a run with other models, settings or prompts" in capsys.readouterr().err


@pytest.mark.slow
def test_own_prompts_are_put_together_by_their_length(
    demo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [{"messages": [{"role": "user", "content": "a word " * count}]} for count in (4, 5, 200)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    words = [*SMALL, "--draft-tokens", "1", "--gates", "off", "--rounds", "1", "--folder", str(tmp_path / "f")]
    assert cli.main(["tune", "--speculation", demo, "--prompts", str(tmp_path / "p.jsonl"), *words, "--json"]) == 0
    capsys.readouterr()
    lines = [json.loads(line) for line in (tmp_path / "f" / "rounds.jsonl").read_text().splitlines()[1:]]
    assert {each["setting"] for each in lines} == {"none", "1"}
    for each in lines:
        short, long = each["cells"]
        assert short["kind"] == long["kind"] == "own" and short["context"] < 64 < 200 < long["context"]
        assert short["prompt_tokens"][1] <= short["context"] and long["prompt_tokens"] == [long["context"]] * 2


async def _models(_: Request) -> JSONResponse:
    return JSONResponse({"data": [{"id": "m"}]})


async def _chat(request: Request) -> JSONResponse:
    """As vLLM, whose answers say nothing of drafts, and which knows no field of Dovetail's."""
    message = {"role": "assistant", "content": "x"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})


def test_a_server_without_settings_in_requests_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(
        Starlette(routes=[Route("/v1/models", _models), Route("/{path:path}", _chat, methods=["POST"])])
    ) as url:
        assert cli.main(["tune", "--speculation", url, *SMALL, "--folder", str(tmp_path)]) == 2
    assert "neither method nor number, gate and limits can be compared there" in capsys.readouterr().err
    assert cli.main(["tune", "--speculation", "http://127.0.0.1:9", *SMALL, "--folder", str(tmp_path / "b")]) == 2
    printed = capsys.readouterr()
    assert "cannot be reached" in printed.err and "nothing can be said" in printed.out
    assert cli.main(["tune", "--speculation", "http://127.0.0.1:9", "--methods", "ngram"]) == 2
    assert "only the number can vary" in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused(
    demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another server, another drafter of the same method, or other prompts."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    other = tmp_path / "drafter"
    shutil.copytree(DEMO / "drafter", other)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(CHAT))
    runs = ([], ["--drafter", str(other)], ["--prompts", str(prompts)], ["http://127.0.0.1:9"], ["http://127.0.0.1:10"])
    for number, run in enumerate(runs):
        for folder in range(number + 1):
            words = ["tune", "--speculation", *run, *SMALL, "--folder", str(tmp_path / str(folder))]
            assert cli.main(words) == 2
            refused = "belongs to a run with other models, settings or prompts" in capsys.readouterr().err
            assert refused == (folder < number), (run, folder)


# --- Engines that it starts -------------------------------------------------------------------------------------------


def test_settings_that_do_not_start_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert cli.main(["tune", "--speculation", *SMALL, "--methods", "suffix", "--folder", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "suffix up to 3 is given up: it does not start: exit code 1" in printed.err
    assert "ruled out: suffix 3" in printed.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gates", "ajar"], "--gates knows off, measured, not 'ajar'"),
        (["--draft-tokens", "0"], "--draft-tokens knows numbers from 1 to 64, not '0'"),
        (["--kinds", "own"], "--kinds knows prose, calls, not 'own'"),
        (["--matrix", "1"], "--matrix must be contexts x concurrencies"),
        (["--engine", "http://127.0.0.1:9"], "is tuned as `tune --speculation URL`"),
    ],
)
def test_words_that_are_not_understood(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "--speculation", *words, "--folder", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.proof
def test_engines_are_started_in_turns_and_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    """One setting cannot start, the run is stopped in the middle, and goes on to a recipe that `serve` takes."""
    folder = tmp_path / "f"
    words = ["tune", "--speculation", *SMALL, "--gates", "off", "--methods", "eagle3,ngram"]
    words += ["--matrix", "256 x 1", "--kinds", "calls", "--tokens", "32"]
    command = [sys.executable, "-m", "dovetail", *words, "--rounds", "2", "--folder", str(folder)]
    # A shell lets what it runs in the background ignore Ctrl-C, and so do its children.
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    first = subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True, preexec_fn=heeded)
    file = folder / "rounds.jsonl"
    while not file.exists() or len(file.read_text().splitlines()) < 2:
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    printed, _ = first.communicate(timeout=60)
    assert first.returncode == 130 and "what was measured is kept" in printed
    kept = file.read_text().splitlines()[:2]
    second = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 0, second.stderr
    assert "ngram 3 is given up: it does not start: engine is embedded" in second.stderr
    assert file.read_text().splitlines()[:2] == kept
    order = [json.loads(line)["setting"] for line in file.read_text().splitlines()[1:]]
    assert order == ["none", "eagle3 3", "eagle3 3", "none"]
    plan = resolve(None, {}, recipe=str(folder / "recipe.yaml"))
    assert plan.value("engine") == "embedded" and not plan.advice_of("warning")
