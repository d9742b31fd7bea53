"""What is checked of a server when it starts: budgets of reasoning, and pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import dovetail
from dovetail.cli.external_engines import check_engine, external_engine
from dovetail.cli.server_checks import check_server, check_started
from dovetail.cli.startup_progress import StartupProgress
from dovetail.errors import EngineError, PlanError
from dovetail.plan import resolve
from tests.backends.remote.fake import Fake, run
from tests.gateway.scripted import ScriptedEngine


@pytest.mark.parametrize(
    ("budgets", "backend", "fault"),
    [
        ("on", "xgrammar", None),
        ("off", "xgrammar", "does not bound reasoning: start it with --reasoning-config"),
        ("unknown", "xgrammar", "does not bound reasoning: start it with --reasoning-config"),
        ("on", "guidance", "does not bound reasoning where guidance enforces a grammar"),
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_a_server_has_to_keep_to_the_plan_s_budget(
    pair: Path, monkeypatch: pytest.MonkeyPatch, started: bool, budgets: str, backend: str, fault: str | None
) -> None:
    async def enforces(*_: object) -> None:
        """Which a fake server does not."""

    monkeypatch.setattr("dovetail.cli.server_checks._check_enforced", enforces)
    target = pair / "target"
    fmt, tokenizer = dovetail.format(target), dovetail.tokenizer(target)

    async def main() -> None:
        for budget, expected in ((9, fault), (None, None)):
            fields: dict[str, Any] = {"engine": "http://127.0.0.1:1", "reasoning_budget": budget}
            plan = resolve(str(target), fields)
            async with Fake(budgets=budgets, backend=backend, tokenize=(404, b"")) as fake:
                fake.pages["/tokenize"] = {}
                server = fake.server()
                try:
                    await server.open()
                    if expected is None:
                        await check(plan, server)
                    else:
                        with pytest.raises(EngineError, match=expected):
                            await check(plan, server)
                finally:
                    await server.close()

    async def check(plan: Any, server: Any) -> None:
        if started:
            await check_started(plan, fmt, tokenizer, lambda warning: None, server)
        else:
            await check_server(plan, fmt, tokenizer, lambda warning: None, server)

    run(main)


def test_a_budget_needs_a_format_whose_reasoning_one_token_closes(pair: Path) -> None:
    console = Console(file=io.StringIO())
    plan = resolve(str(pair / "target"), {"engine": "http://127.0.0.1:1", "reasoning_budget": 9})
    tokenizer = dovetail.tokenizer(pair / "target")
    arguments = tokenizer, StartupProgress(console, "vLLM"), console
    with pytest.raises(PlanError, match="reasoning_budget needs the embedded engine: no single control token ends"):
        external_engine(plan, dovetail.format("harmony"), *arguments)
    external_engine(plan, dovetail.format(pair / "target"), *arguments)


@pytest.mark.parametrize("takes", [True, False])
def test_it_says_that_pictures_are_left_out(pair: Path, takes: bool) -> None:
    target = pair / "target"
    fmt, tokenizer, plan = (
        dovetail.format(target),
        dovetail.tokenizer(target),
        resolve(str(target), {"draft_tokens": 0}),
    )
    engine = ScriptedEngine(tokenizer)
    engine.info = msgspec.structs.replace(engine.info, pictures=takes)
    console = Console(file=io.StringIO(), width=200)
    run(lambda: check_engine(plan, engine, fmt, tokenizer, console))
    assert isinstance(console.file, io.StringIO)
    assert ("pictures are left out" in console.file.getvalue()) is not takes
