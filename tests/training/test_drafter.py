"""`python -m training.drafter`: from requests to a drafter that the engine runs, stopped and gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.completion import Sampling
from dovetail.engine.settings import EngineSettings
from dovetail.engine.weights import inspect_target
from training import drafter
from training.answers import Chat, answer
from training.features import TargetStates
from training.model import Target, TargetShape

TARGET = Path(dovetail.__file__).parent / "data" / "demo" / "target"
REQUESTS = [{"messages": [{"role": "user", "content": f"Say {i} twice. " * (1 + i % 3)}]} for i in range(42)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in REQUESTS))
    return file


def run(monkeypatch: pytest.MonkeyPatch, *words: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["drafter", *map(str, words)])
    return drafter.main()


@pytest.mark.slow
@pytest.mark.proof
def test_a_drafter_is_learned_and_measured(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (TARGET, "--data", data, "--out", tmp_path / "run", "--longest", 64, "--threads", 1, "--minutes", 0.02)
    kept = drafter._KEPT_EVERY

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(drafter, "_KEPT_EVERY", 1)
        patch.setattr(drafter.export, "drafter_config", stop)
        assert run(patch, *words) == 130
    assert (tmp_path / "run" / "learning.pt").exists() and kept == drafter._KEPT_EVERY
    answers = (tmp_path / "run" / "answers.jsonl").stat().st_mtime_ns
    assert run(monkeypatch, *words) == 0
    assert (tmp_path / "run" / "answers.jsonl").stat().st_mtime_ns == answers
    assert "The gate" in capsys.readouterr().out
    figures = json.loads((tmp_path / "run" / "figures.json").read_text())
    # Drafts change no greedy text, and each draft that is accepted is one token more in a step.
    assert len({figures[way]["tokens"] for way in ("no drafts", "3 drafts", "gated")}) == 1
    fixed = figures["3 drafts"]
    assert fixed["drafted"] > 0 and fixed["tokens"] <= fixed["steps"] + fixed["accepted"]
    assert run(monkeypatch, *words, "--temperature", 0) == 2
    assert "another temperature" in capsys.readouterr().err


def test_states_are_the_target_s(tmp_path: Path) -> None:
    target = Target(TargetShape()).eval()
    from safetensors.torch import load_file

    target.load_state_dict({name: t.float() for name, t in load_file(TARGET / "model.safetensors").items()})
    ids = [5, 900, 17, 300, 2, 44]
    states = TargetStates(inspect_target(TARGET), (1, 3, 4), 16).of(ids)
    with torch.inference_mode():
        hidden, aux = target(torch.tensor([ids]), (1, 3, 4))
    torch.testing.assert_close(states["hidden"].float(), hidden[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(states["aux"].float(), torch.cat(aux, -1)[0], rtol=0.02, atol=0.02)


def test_answers_are_the_engine_s_and_go_on(tmp_path: Path) -> None:
    file, done = tmp_path / "answers.jsonl", []
    long = {"messages": [{"role": "user", "content": "word " * 200}]}
    first = answer(TARGET, REQUESTS[:2], file, longest=64, temperature=0, progress=done.append)
    both = answer(TARGET, [*REQUESTS[:2], long], file, longest=64, temperature=0, progress=done.append)
    assert both[:2] == first and both[2] == ([], []) and done == [0, 2, 2, 3]
    chat = Chat(TARGET, None, EngineSettings(draft_tokens=0, context=64))
    asked = {"messages": [*REQUESTS[0]["messages"], {"role": "assistant", "content": "Not this."}]}
    (steps,) = chat.run([chat.completion(asked, Sampling(temperature=0.0))])
    assert [token for step in steps for token in step.ids] == first[0].answer
    chat.close()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "has no request"),
        ("{}\n", "line 1: it is no chat request"),
        (json.dumps(REQUESTS[0]) + "\n", "has 1 requests; a drafter needs at least 40"),
    ],
)
def test_what_is_no_data_is_one_line(
    content: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    assert run(monkeypatch, TARGET, "--data", file, "--out", tmp_path / "run") == 2
    assert error in capsys.readouterr().err
    assert run(monkeypatch, tmp_path, "--data", file, "--out", tmp_path / "run") == 2
