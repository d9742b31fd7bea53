"""The engines that run in other processes, put together as a plan says: vLLM that is started here, servers that run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.backends import vllm
from dovetail.backends.remote import RemoteEngine, Server, read_vocabulary
from dovetail.backends.remote.errors import UNREADABLE, ServerLost
from dovetail.backends.vllm.download import downloaded_bytes
from dovetail.cli.api_keys import key_file
from dovetail.cli.startup_progress import Watching
from dovetail.cli.terminal import PROBLEM, visible
from dovetail.completion import Completion, Engine, Sampling
from dovetail.errors import EngineError, InvalidRequest, PlanError, RenderError
from dovetail.grammar import Concat, ControlToken, ExactText, Grammar
from dovetail.plan import Plan
from dovetail.plan.drafter import cannot_run
from dovetail.plan.engines import not_here
from dovetail.tokens import Tokenizer

#: A text that repeats itself, so that a lookup has something to find in it, and is shorter than most limits.
_REPEATS = "one two three four five six seven eight nine ten " * 4
_COMPARED = 24
#: Why a grammar does not hold from the first token on: of a server that runs, and of one that is started here, which
#: has no reasoning parser.
_WHY_NOT = (
    "it was started with a reasoning parser, and holds them only behind the reasoning; start it without, or with "
    "--structured-outputs-config.enable_in_reasoning=true, or say --strict off"
)
_WHY_NOT_OURS = "it did not heed the grammar of a trial; say --grammar-backend xgrammar, or --strict off"


def engine(plan: Plan, tokenizer: Tokenizer, watching: Watching, console: Console) -> Engine:
    """The plan's engine, not started yet. Raises `PlanError`."""
    if plan.value("engine") == "vllm":
        return _started(plan, tokenizer, watching, console)
    vocabulary, key = read_vocabulary(Path(plan.folders["target"]), tokenizer), key_file(plan, "engine_api_key_file")
    # Once for each text: a server that is left out is looked at again and again.
    check = partial(_check, plan, tokenizer, cache(watching.say))
    urls = [url.strip() for url in plan.value("engine").split(",")]
    servers = [Server(url, vocabulary, key=key, check=check) for url in urls]
    console.print(Text(f"trying out {', '.join(server.name for server in servers)}", "dim"), soft_wrap=True)
    return RemoteEngine(servers)


def _started(plan: Plan, tokenizer: Tokenizer, watching: Watching, console: Console) -> vllm.VLLMEngine:
    why = None if plan.drafter is None else cannot_run(plan.drafter, "vllm")
    if why is not None:
        raise PlanError(f"engine is vllm with {plan.value('drafter')}: {why}. Another drafter, or --drafter none")
    program = vllm.find(plan.value("vllm"))
    version = vllm.version(program)
    socket = vllm.Socket()
    launch = vllm.launch(plan, program, version, socket.path)
    for note in launch.notes:
        console.print(Text(f"vLLM: {note}", PROBLEM))
    log = vllm.log_path(plan.value("engine_log"), plan.value("port"))
    console.print(Text(f"vLLM {version} ({program}) writes to {log}", "dim"), soft_wrap=True)
    vocabulary = read_vocabulary(Path(plan.folders["target"]), tokenizer)
    guided = plan.value("strict") != "off" and plan.value("grammar_backend") == "guidance"
    check = _first(partial(_hold, plan, tokenizer, why_not=_WHY_NOT_OURS)) if guided else None
    server = Server(vllm.URL, vocabulary, key=launch.key, path=socket.path, check=check)
    return vllm.VLLMEngine(launch, server, socket, log, watching, downloaded=_downloaded(plan))


def _downloaded(plan: Plan) -> vllm.Downloaded | None:
    """Counts the downloaded bytes of the target, if vLLM has to download it."""
    name, folder = plan.value("target"), plan.folders["target"]
    if plan.fit is None or not_here(name, folder) is None:
        return None
    total = plan.fit.weights
    return lambda: (downloaded_bytes(folder), total)


async def prove(plan: Plan, engine: Engine, tokenizer: Tokenizer, console: Console) -> None:
    """See that the engine drafts where the plan does, each of its servers for itself, and say so."""
    tokens, method = plan.value("draft_tokens"), plan.value("method")
    if not tokens or (method is None and plan.value("drafter") is None):
        return
    longest = min(engine.info.context, plan.value("speculate_below_context") or engine.info.context)
    prompt = tuple(tokenizer.encode(_REPEATS))[: max(1, longest - vllm.PROBE_TOKENS)]
    probed: dict[str, vllm.Probed] = {"": engine}
    if isinstance(engine, RemoteEngine) and len(engine.servers) > 1:
        probed = {f" at {server.name}": server for server in engine.servers}
    findings = await asyncio.gather(*(vllm.probe(each, prompt, method) for each in probed.values()))
    for where, found in zip(probed, findings, strict=True):
        if found.warning is None:
            share = f"{found.accepted:.0f} of {found.drafted:.0f} draft tokens were accepted in a probe"
            console.print(f"speculation is on{where}: {share}", style="dim")
        else:
            warning = f"WARNING: nothing is drafted{where}, though {method or 'a drafter'} is to: {found.warning}"
            console.print(Text(warning, "bold red"))


def _first(check: Callable[[Server], Awaitable[None]]) -> Callable[[Server], Awaitable[None]]:
    """`check` until it was passed: what is started again has the same words, and requests wait for it."""
    passed = False

    async def first(server: Server) -> None:
        nonlocal passed
        if not passed:
            await check(server)
            passed = True

    return first


async def _check(plan: Plan, tokenizer: Tokenizer, warn: Callable[[str], None], server: Server) -> None:
    """See that a server has the plan's model, and holds calls to their schemas. Raises `EngineError`."""
    await _same_model(plan, tokenizer, warn, server)
    if plan.value("strict") != "off":
        await _hold(plan, tokenizer, server)


async def _hold(plan: Plan, tokenizer: Tokenizer, server: Server, *, why_not: str = _WHY_NOT) -> None:
    """See that a server holds an answer to its grammar from the first token on. Raises `EngineError`."""
    found = plan.settings["format"].source == "default"
    fmt = dovetail.format(Path(plan.folders["target"]) if found else plan.value("format"))
    literal = next((each for each, token in tokenizer.control.items() if token not in server.vocabulary.eos_ids), None)
    if literal is None:
        return
    told = f"{server.name} does not hold calls to their schemas: {why_not}"
    try:
        # A prompt inside its reasoning, where the format has any.
        prompt = tuple(fmt.render([{"role": "user", "content": "hi"}], None, thinking=True).ids(tokenizer))
        grammar = Grammar(Concat((ExactText("a"), ControlToken(literal))))
        asked = Completion(prompt, 4, Sampling(temperature=0), grammar=grammar, request_id="probe")
        async with aclosing(server.complete(asked)) as batches:
            ids = [token async for batch in batches for token in batch.ids]
    except RenderError:
        return
    except InvalidRequest as error:
        why = f"{error.message}; or say --strict off"
        raise EngineError(f"{server.name} does not hold calls to their schemas: {why}") from error
    except ServerLost:
        raise
    except EngineError as error:
        raise EngineError(f"{told} ({error.message})") from error
    if tokenizer.control[literal] not in ids:
        raise EngineError(told)


async def _same_model(plan: Plan, tokenizer: Tokenizer, warn: Callable[[str], None], server: Server) -> None:
    """Hold what a server has against the model that prompts are rendered for.

    Warns about another name. Raises `EngineError` for another vocabulary: ids would mean something else there.
    """
    try:
        models = msgspec.json.decode((await server.page("/v1/models"))[1], type=_Models).data
    except UNREADABLE:
        return
    served = {each for model in models for each in (model.id, model.root) if each}
    ours = {plan.value("served_model_name"), plan.value("target"), plan.folders["target"]}
    if not ({_last(each) for each in served} & {_last(each) for each in ours}):
        others = _shown(", ".join(sorted(served))) or "nothing"
        warn(f"warning: {server.name} serves {others}, prompts are {plan.value('target')}'s")
    control = dict(itertools.islice(tokenizer.control.items(), _COMPARED))
    theirs = await _tokenized(server, models[0].id if models else "", "".join(control))
    if theirs is not None and theirs != list(control.values()):
        what = _shown(models[0].id) if models else "a model"
        raise EngineError(
            f"{server.name} serves {what}, whose control tokens have other ids than {plan.value('target')} has: give "
            "the checkpoint as MODEL that it serves"
        )


async def _tokenized(server: Server, model: str, text: str) -> list[int] | None:
    """The server's own ids of `text`, None where it does not say. vLLM and SGLang read the one half, llama.cpp the
    other."""
    asked: dict[str, Any] = {"model": model, "prompt": text, "add_special_tokens": False}
    asked |= {"content": text, "add_special": False, "parse_special": True}
    try:
        status, body = await server.page("/tokenize", asked)
        return msgspec.json.decode(body, type=_Tokens).tokens if status == 200 and text else None
    except ServerLost:
        raise
    except (EngineError, *UNREADABLE):
        return None


class _Model(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _shown(name: str) -> str:
    """On one line, and without signs that a terminal obeys."""
    return visible(" ".join(name.split()))


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
