"""What is checked of a server before prompts go to it: its model, its token ids, and that it enforces grammars."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from dovetail.backends.remote import Server
from dovetail.backends.remote.errors import UNREADABLE, ServerLost
from dovetail.cli.terminal import visible
from dovetail.completion import Completion, Sampling
from dovetail.errors import EngineError, InvalidRequest, RenderError
from dovetail.formats.base import Format
from dovetail.grammar import Concat, ControlToken, ExactText, Grammar
from dovetail.plan import Plan
from dovetail.tokens import Tokenizer

_COMPARED = 24  # control tokens whose ids are compared
#: The likely cause when a server that already ran does not enforce a grammar from the first token on.
_REASONING_PARSER = (
    "it was started with a reasoning parser, and enforces grammars only after the reasoning; start it without or with "
    "--structured-outputs-config.enable_in_reasoning=true, or set --strict off"
)
#: The same for a vLLM that Dovetail started, which has no reasoning parser.
_GRAMMAR_BACKEND = "it did not enforce the grammar of a probe; set --grammar-backend xgrammar, or --strict off"


async def check_server(
    plan: Plan, fmt: Format, tokenizer: Tokenizer, warn: Callable[[str], None], server: Server
) -> None:
    """Check that a server has the plan's model, enforces the schemas of calls and keeps to the plan's budget.

    Raises `EngineError`.
    """
    await _check_model(plan, tokenizer, warn, server)
    _check_bounded(plan, server)
    if plan.value("strict") != "off":
        await _check_enforced(fmt, tokenizer, server, _REASONING_PARSER)


async def check_started(
    plan: Plan, fmt: Format, tokenizer: Tokenizer, warn: Callable[[str], None], server: Server
) -> None:
    """Check that an engine that Dovetail started keeps to the plan's budget, and enforces schemas if it has to.

    Warns where it enforces none and only the default asks for them. Raises `EngineError`.
    """
    _check_bounded(plan, server)
    missing = None if server.limits is None else server.limits.no_grammar
    if missing is not None and plan.value("strict") != "off":
        if plan.settings["strict"].source != "default":
            raise EngineError(f"{server.name} does not enforce the schemas of calls: {missing}")
        warn(f"warning: calls are not constrained, only read and checked, because {missing.partition(';')[0]}")
    if plan.value("strict") != "off" and plan.value("grammar_backend") == "guidance":
        await _check_enforced(fmt, tokenizer, server, _GRAMMAR_BACKEND)


def _check_bounded(plan: Plan, server: Server) -> None:
    """Check that a server keeps to the plan's budget of reasoning, if there is one. Raises `EngineError`."""
    if plan.value("reasoning_budget") is None:
        return
    if not server.info.bounds_reasoning:
        start = "start it with --reasoning-config, as `dovetail plan --emit vllm` does"
        raise EngineError(f"{server.name} does not bound reasoning: {start}, or leave out --reasoning-budget")
    if plan.value("strict") != "off" and server.info.enforces == "lark":
        change = "set --grammar-backend xgrammar or --strict off"
        raise EngineError(f"{server.name} does not bound reasoning where guidance enforces a grammar: {change}")


def until_passed(check: Callable[[Server], Awaitable[None]]) -> Callable[[Server], Awaitable[None]]:
    """`check`, which does nothing any more once it has passed.

    For a server that is restarted with the same command while requests wait for it.
    """
    passed = False

    async def checked(server: Server) -> None:
        nonlocal passed
        if not passed:
            await check(server)
            passed = True

    return checked


async def _check_enforced(fmt: Format, tokenizer: Tokenizer, server: Server, cause: str) -> None:
    """Check that a server enforces a grammar from the first token on. `cause`: the likely cause if it does not."""
    literal = next((text for text, token in tokenizer.control.items() if token not in server.vocabulary.eos_ids), None)
    if literal is None:
        return
    problem = f"{server.name} does not enforce the schemas of calls"
    try:
        # With thinking, because a reasoning parser would start the grammar after the reasoning.
        prompt = tuple(fmt.render([{"role": "user", "content": "hi"}], None, thinking=True).ids(tokenizer))
        grammar = Grammar(Concat((ExactText("a"), ControlToken(literal))))
        probe = Completion(prompt, 4, Sampling(temperature=0), grammar=grammar, request_id="probe")
        async with aclosing(server.complete(probe)) as batches:
            ids = [token async for batch in batches for token in batch.ids]
    except RenderError:
        return
    except InvalidRequest as error:
        raise EngineError(f"{problem}: {error.message}; or set --strict off") from error
    except ServerLost:
        raise
    except EngineError as error:
        raise EngineError(f"{problem}: {cause} ({error.message})") from error
    if tokenizer.control[literal] not in ids:
        raise EngineError(f"{problem}: {cause}")


async def _check_model(plan: Plan, tokenizer: Tokenizer, warn: Callable[[str], None], server: Server) -> None:
    """Compare a server's model with the model that prompts are rendered for.

    Warns about another name. Raises `EngineError` for other token ids, which would mean other text there.
    """
    try:
        models = msgspec.json.decode((await server.page("/v1/models"))[1], type=_Models).data
    except UNREADABLE:
        return
    served = {name for model in models for name in (model.id, model.root) if name}
    planned = {plan.value("served_model_name"), plan.value("target"), plan.folders["target"]}
    if not ({_base_name(name) for name in served} & {_base_name(name) for name in planned}):
        names = _one_line(", ".join(sorted(served))) or "nothing"
        warn(f"warning: {server.name} serves {names}, but prompts are rendered for {plan.value('target')}")
    control = dict(itertools.islice(tokenizer.control.items(), _COMPARED))
    ids = await _server_ids(server, models[0].id if models else "", "".join(control))
    if ids is not None and ids != list(control.values()):
        name = _one_line(models[0].id) if models else "a model"
        raise EngineError(
            f"{server.name} serves {name}, whose control tokens have other ids than in {plan.value('target')}: "
            "give the checkpoint that it serves as MODEL"
        )


async def _server_ids(server: Server, model: str, text: str) -> list[int] | None:
    """The server's own token ids of `text`; None if it does not report them."""
    # The first fields are for vLLM and SGLang, the next for llama.cpp, the last for Dovetail.
    body: dict[str, Any] = {"model": model, "prompt": text, "add_special_tokens": False}
    body |= {"content": text, "add_special": False, "parse_special": True}
    body |= {"dovetail": {"control_tokens": True}}
    try:
        status, answer = await server.page("/tokenize", body)
        return msgspec.json.decode(answer, type=_Tokens).tokens if status == 200 and text else None
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


def _one_line(name: str) -> str:
    """`name` on one line, without characters that control a terminal."""
    return visible(" ".join(name.split()))


def _base_name(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
