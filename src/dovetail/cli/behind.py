"""The engines that run in other processes, put together as a plan says: vLLM that is started here, servers that run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

import dovetail
from dovetail.backends import vllm
from dovetail.backends.remote import RemoteEngine, Server, read_vocabulary
from dovetail.backends.remote.faults import UNREADABLE
from dovetail.backends.remote.http import Http, split_address
from dovetail.backends.vllm.download import fetched
from dovetail.cli.keys import key_file
from dovetail.cli.screen import PROBLEM, visible
from dovetail.cli.watching import Watching
from dovetail.completion import Completion, Engine, Sampling
from dovetail.errors import EngineError, InvalidRequest, PlanError, RenderError
from dovetail.grammar import Control, Grammar, Literal, Sequence
from dovetail.plan import Plan
from dovetail.plan.drafter import cannot_run
from dovetail.plan.engines import not_here
from dovetail.tokens import Tokenizer

#: How long a request waits for vLLM to come back, which takes a large model minutes.
_PATIENCE_S = 900.0
#: A text that repeats itself, so that a lookup has something to find in it, and is shorter than most limits.
_REPEATS = "one two three four five six seven eight nine ten " * 4
_COMPARED = 24
#: Why a grammar does not hold from the first token on.
_WHY_NOT = (
    "it was started with a reasoning parser, and holds them only behind the reasoning; start it without, or with "
    "--structured-outputs-config.enable_in_reasoning=true, or say --strict off"
)


def engine(plan: Plan, tokenizer: Tokenizer, watching: Watching, console: Console) -> Engine:
    """The plan's engine, not started yet. Raises `PlanError`."""
    if plan.value("engine") == "vllm":
        return _started(plan, tokenizer, watching, console)
    vocabulary, key = read_vocabulary(Path(plan.folders["target"]), tokenizer), _key(plan)
    return RemoteEngine([Server(url, vocabulary, key=key) for url in _urls(plan)])


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
    server = Server(vllm.URL, vocabulary, key=launch.key, path=socket.path)
    client = RemoteEngine([server], patience_s=_PATIENCE_S)
    return vllm.VLLMEngine(launch, client, socket, log, watching, fetched=_fetching(plan))


def _fetching(plan: Plan) -> vllm.Fetched | None:
    """What counts the bytes of the target that are here, where vLLM has to fetch it."""
    name, folder = plan.value("target"), plan.folders["target"]
    if plan.fit is None or not_here(name, folder) is None:
        return None
    total = plan.fit.weights
    return lambda: (fetched(folder), total)


async def prove(plan: Plan, engine: Engine, tokenizer: Tokenizer, console: Console) -> None:
    """See that servers have the plan's model, and that the engine drafts where the plan does. Raises `EngineError`."""
    if "://" in plan.value("engine"):
        await _same_models(plan, tokenizer, console)
        if plan.value("strict") != "off":
            await _each_holds(plan, engine, tokenizer)
    tokens, method = plan.value("draft_tokens"), plan.value("method")
    if not tokens or (method is None and plan.value("drafter") is None):
        return
    longest = min(engine.info.context, plan.value("speculate_below_context") or engine.info.context)
    prompt = tuple(tokenizer.encode(_REPEATS))[: max(1, longest - vllm.PROBE_TOKENS)]
    found = await vllm.probe(engine, prompt, method)
    if found.warning is None:
        share = f"{found.accepted:.0f} of {found.drafted:.0f} draft tokens were accepted in a probe"
        console.print(f"speculation is on: {share}", style="dim")
        return
    console.print(
        Text(f"WARNING: nothing is drafted, though {method or 'a drafter'} is to: {found.warning}", "bold red")
    )


async def _each_holds(plan: Plan, engine: Engine, tokenizer: Tokenizer) -> None:
    urls, vocabulary = _urls(plan), read_vocabulary(Path(plan.folders["target"]), tokenizer)
    if len(urls) == 1:
        await _hold(plan, urls[0], engine, tokenizer)
        return
    for url in urls:
        alone = RemoteEngine([Server(url, vocabulary, key=_key(plan))])
        try:
            await alone.start()
        except EngineError:
            continue  # one that joins later, of which its own log tells
        try:
            await _hold(plan, url, alone, tokenizer)
        finally:
            await alone.stop()


async def _hold(plan: Plan, url: str, engine: Engine, tokenizer: Tokenizer) -> None:
    """See that a server holds an answer to its grammar from the first token on.

    Raises `EngineError` where it does not; nothing is known where it takes no such grammar.
    """
    found = plan.settings["format"].source == "default"
    fmt = dovetail.format(Path(plan.folders["target"]) if found else plan.value("format"))
    literal = next((each for each, token in tokenizer.control.items() if token not in engine.info.eos_ids), None)
    if literal is None:
        return
    told = f"{url} does not hold calls to their schemas: {_WHY_NOT}"
    try:
        # A prompt inside its reasoning, where the format has any.
        prompt = tuple(fmt.render([{"role": "user", "content": "hi"}], None, thinking=True).ids(tokenizer))
        grammar = Grammar(Sequence((Literal("a"), Control(literal))))
        asked = Completion(prompt, 4, Sampling(temperature=0), grammar=grammar, request_id="probe")
        ids = [token async for batch in engine.complete(asked) for token in batch.ids]
    except (RenderError, InvalidRequest):
        return
    except EngineError as error:
        raise EngineError(f"{told} ({error.message})") from error
    if tokenizer.control[literal] not in ids:
        raise EngineError(told)


def _urls(plan: Plan) -> list[str]:
    return [url.strip() for url in plan.value("engine").split(",")]


def _key(plan: Plan) -> str | None:
    return key_file(plan, "engine_api_key_file")


async def _same_models(plan: Plan, tokenizer: Tokenizer, console: Console) -> None:
    """Hold what runs at the plan's URLs against the model that prompts are rendered for.

    Warns about another name. Raises `EngineError` for another vocabulary: ids would mean something else there.
    """
    for url in _urls(plan):
        base, name = split_address(url)
        http = Http(base, name, _key(plan), 30.0)
        try:
            await _same_model(plan, tokenizer, console, http, name)
        finally:
            await http.close()


async def _same_model(plan: Plan, tokenizer: Tokenizer, console: Console, http: Http, name: str) -> None:
    try:
        models = msgspec.json.decode((await http.page("/v1/models"))[1], type=_Models).data
    except (EngineError, *UNREADABLE):
        return  # one that joins later, of which its own log tells
    served = {each for model in models for each in (model.id, model.root) if each}
    ours = {plan.value("served_model_name"), plan.value("target"), plan.folders["target"]}
    if not ({_last(each) for each in served} & {_last(each) for each in ours}):
        others = _shown(", ".join(sorted(served))) or "nothing"
        console.print(Text(f"warning: {name} serves {others}, prompts are {plan.value('target')}'s", PROBLEM))
    control = dict(itertools.islice(tokenizer.control.items(), _COMPARED))
    theirs = await _tokenized(http, models[0].id if models else "", "".join(control))
    if theirs is not None and theirs != list(control.values()):
        raise EngineError(
            f"{name} serves {_shown(models[0].id) if models else 'a model'}, whose control tokens have other ids than "
            f"{plan.value('target')} has: give the checkpoint as MODEL that it serves"
        )


async def _tokenized(http: Http, model: str, text: str) -> list[int] | None:
    """The server's own ids of `text`, None where it does not say. vLLM and SGLang read the one half, llama.cpp the
    other."""
    asked: dict[str, Any] = {"model": model, "prompt": text, "add_special_tokens": False}
    asked |= {"content": text, "add_special": False, "parse_special": True}
    try:
        status, body = await http.page("/tokenize", asked)
        return msgspec.json.decode(body, type=_Tokens).tokens if status == 200 and text else None
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
