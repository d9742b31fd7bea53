"""The engines in other processes, as a plan configures them: vLLM or llama.cpp started here, or servers that run."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dovetail.backends import llama_cpp, supervised, vllm
from dovetail.backends.remote import PATIENCE_S, Deadlines, RemoteEngine, Server, read_vocabulary
from dovetail.backends.remote.members import Members, finder, together
from dovetail.cli.server_checks import check_server, check_started, until_passed
from dovetail.cli.startup_progress import StartupProgress, errors_ignored
from dovetail.cli.terminal import PROBLEM
from dovetail.completion import Engine
from dovetail.errors import PlanError
from dovetail.formats.base import Format
from dovetail.plan import Plan
from dovetail.plan.engines import missing_files
from dovetail.plan.llama_cpp import find
from dovetail.plan.pairing import cannot_run
from dovetail.plan.resolve import SEVERAL
from dovetail.server.api_keys import read_key
from dovetail.tokens import Tokenizer


def downloaded_bytes(snapshot: str) -> int:
    """The size of the hub's cache for the model whose `snapshot` folder this is, unfinished files included.

    https://huggingface.co/docs/huggingface_hub/guides/manage-cache: snapshots/REVISION links into blobs/.
    """
    try:
        with os.scandir(Path(snapshot).parent.parent / "blobs") as blobs:
            return sum(_size(blob) for blob in blobs)
    except OSError:
        return 0


def _size(blob: os.DirEntry[str]) -> int:
    try:
        return blob.stat().st_size
    except OSError:  # an unfinished file that was renamed in this moment
        return 0


#: The engines that Dovetail starts.
STARTED = ("vllm", "llama.cpp")
#: A text that repeats itself, so that lookup has something to draft, and that fits into most limits.
_PROBE_TEXT = "one two three four five six seven eight nine ten " * 4


def external_engine(
    plan: Plan, fmt: Format, tokenizer: Tokenizer, progress: StartupProgress, console: Console
) -> Engine:
    """The plan's engine, not started yet. Raises `PlanError`."""
    if plan.value("reasoning_budget") is not None and _block(fmt, tokenizer) is None:
        raise PlanError(
            f"reasoning_budget needs the embedded engine: no single control token ends the reasoning of {fmt.name}"
        )
    if plan.value("engine") in STARTED:
        return _started_engine(plan, fmt, tokenizer, progress, console)
    joined = partial(check_drafting_again, plan, tokenizer, console)
    vocabulary, key = read_vocabulary(Path(plan.folders["target"]), tokenizer), read_key(plan, "engine_api_key_file")
    # A server that is left out is checked again and again, so each warning is shown once.
    check = partial(check_server, plan, fmt, tokenizer, cache(progress.say))
    addresses = [address.strip() for address in plan.value("engine").split(",")]
    finders = {address: find for address in addresses if (find := finder(address)) is not None}
    server = partial(Server, vocabulary=vocabulary, key=key, check=check, deadlines=_deadlines(plan))
    servers = [server(address) for address in addresses if address not in finders]
    names = (*(server.name for server in servers), *finders)
    console.print(Text(f"checking {', '.join(names)}", "dim"), soft_wrap=True)
    members = Members(together([*finders.values()]), server) if finders else None
    patience_s = plan.value("engine_down_timeout") or PATIENCE_S
    return RemoteEngine(servers, members=members, patience_s=patience_s, joined=joined)


def _started_engine(
    plan: Plan, fmt: Format, tokenizer: Tokenizer, progress: StartupProgress, console: Console
) -> supervised.SupervisedEngine:
    socket = supervised.Socket()
    starts = _vllm if plan.value("engine") == "vllm" else _llama_cpp
    launch, version = starts(plan, socket.path, _block(fmt, tokenizer))
    program = launch.program
    for note in launch.notes:
        console.print(Text(f"{program.name}: {note}", PROBLEM))
    log = supervised.log_path(plan.value("engine_log"), log_name(plan), plan.value("port"))
    console.print(Text(f"{program.name} {version} ({launch.arguments[0]}) writes to {log}", "dim"), soft_wrap=True)
    vocabulary = read_vocabulary(Path(plan.folders["target"]), tokenizer)
    check = until_passed(partial(check_started, plan, fmt, tokenizer, progress.say))
    deadlines, down_s = _deadlines(plan), plan.value("engine_down_timeout") or supervised.PATIENCE_S
    server = Server(program.url, vocabulary, key=launch.key, path=socket.path, check=check, deadlines=deadlines)
    return supervised.SupervisedEngine(
        launch,
        server,
        socket,
        log,
        progress,
        downloaded=_downloaded(plan),
        patience_s=down_s,
        joined=partial(check_drafting_again, plan, tokenizer, console),
    )


def log_name(plan: Plan) -> str:
    """Whose log it is: the engine's, and the model's if there are several."""
    model = plan.settings["served_model_name"]
    several = f"-{re.sub('[^A-Za-z0-9._-]', '_', model.value)}" if model.source == SEVERAL else ""
    return f"{plan.value('engine')}{several}"


def _vllm(plan: Plan, path: str, markers: tuple[str, str] | None) -> tuple[supervised.Launch, str]:
    reason = None if plan.drafter is None else cannot_run(plan.drafter, "vllm")
    if reason is not None:
        raise PlanError(f"engine is vllm with {plan.value('drafter')}: {reason}. Another drafter, or --drafter none")
    program = vllm.find(plan.value("vllm"))
    version = vllm.version(program)
    return vllm.launch(plan, program, version, path, markers), version


def _llama_cpp(plan: Plan, path: str, markers: tuple[str, str] | None) -> tuple[supervised.Launch, str]:
    program = find(plan.value("llama_server"))
    return llama_cpp.launch(plan, program, path), llama_cpp.version(program)


def _block(fmt: Format, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """What opens and closes reasoning, if vLLM can close it: by a control token, which `tokenizer` has."""
    return fmt.closable_markers if fmt.reasoning_tokens(tokenizer) is not None else None


def _deadlines(plan: Plan) -> Deadlines:
    """The plan's deadlines for tokens. What it does not set has the default."""
    limits = {"first_token_s": "first_token_timeout", "idle_s": "engine_idle_timeout"}
    return Deadlines(**{field: value for field, name in limits.items() if (value := plan.value(name)) is not None})


def _downloaded(plan: Plan) -> supervised.Downloaded | None:
    """Counts the downloaded bytes of the target, if the engine has to download it."""
    name, folder = plan.value("target"), plan.folders["target"]
    if plan.fit is None or missing_files(name, folder) is None:
        return None
    total = plan.fit.weights
    return lambda: (downloaded_bytes(folder), total)


async def check_engine(plan: Plan, engine: Engine, fmt: Format, tokenizer: Tokenizer, console: Console) -> None:
    """Print what the engine does of the plan, and what the model's prompts could have that it does not take."""
    if fmt.picture is not None and not engine.info.pictures:
        advice = "a vLLM needs --enable-scale-out, and a model that sees"
        with errors_ignored():
            console.print(Text(f"pictures are left out: this engine takes none ({advice})", "dim"))
    await check_drafting(plan, engine, tokenizer, console)


async def check_drafting(plan: Plan, engine: Engine, tokenizer: Tokenizer, console: Console) -> None:
    """Print whether the engine drafts, for each of its servers, if the plan has it draft."""
    probed: dict[str, vllm.Probed] = {"": engine}
    if isinstance(engine, RemoteEngine) and len(engine.servers) > 1:
        probed = {f" at {server.name}": server for server in engine.servers}
    await _check_drafting(plan, probed, tokenizer, console)


async def check_drafting_again(plan: Plan, tokenizer: Tokenizer, console: Console, server: Server) -> None:
    """Print whether a server drafts that came up after the start, because it was restarted or joins late."""
    where = " after the restart" if plan.value("engine") in STARTED else f" at {server.name}"
    await _check_drafting(plan, {where: server}, tokenizer, console)


async def _check_drafting(
    plan: Plan, probed: Mapping[str, vllm.Probed], tokenizer: Tokenizer, console: Console
) -> None:
    tokens, method = plan.value("draft_tokens"), plan.value("method")
    if not tokens or (method is None and plan.value("drafter") is None):
        return
    findings = await asyncio.gather(
        *(vllm.probe(each, _probe_prompt(plan, each, tokenizer), method) for each in probed.values())
    )
    for where, finding in zip(probed, findings, strict=True):
        if finding.warning is None:
            share = f"{finding.accepted:.0f} of {finding.drafted:.0f} draft tokens were accepted in a probe"
            text = Text(f"speculation is on{where}: {share}", "dim")
        else:
            warning = f"WARNING: nothing is drafted{where}, although {method or 'a drafter'} should: {finding.warning}"
            text = Text(warning, "bold red")
        with errors_ignored():
            console.print(text)


def _probe_prompt(plan: Plan, engine: vllm.Probed, tokenizer: Tokenizer) -> tuple[int, ...]:
    longest = min(engine.info.context, plan.value("speculate_below_context") or engine.info.context)
    return tuple(tokenizer.encode(_PROBE_TEXT))[: max(1, longest - vllm.PROBE_TOKENS)]
