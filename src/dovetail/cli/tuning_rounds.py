"""One round of `dovetail tune --speculation`: every setting once, at servers started for it or at one that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dovetail.bench.figures import Cell
from dovetail.bench.plan import Plan
from dovetail.bench.race import Round
from dovetail.bench.runner import Run
from dovetail.bench.target import Target
from dovetail.cli import tuned_recipe
from dovetail.cli.served import served
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.not_tested import NotTested
from dovetail.client.transport import HttpTransport
from dovetail.errors import InvalidRequest
from dovetail.plan.recipe import Recipe

#: What to show of the request that ended last.
Shown = Callable[[str], None]
Fields = Mapping[str, Any]


class Work(msgspec.Struct, frozen=True):
    """What every setting does in a round. `prompts`: the user's own; None for ours."""

    plan: Plan
    prompts: Sequence[Fields] | None
    timeout: float


class Rounds(Protocol):
    """How settings are measured."""

    def groups(self, left: Sequence[str]) -> list[list[str]]:
        """The settings that are measured together."""

    def measure(self, number: int, group: Sequence[str], shown: Shown) -> list[Round]:
        """Round `number` of a group. Raises `InvalidRequest` where no setting can be measured."""


class Started:
    """Each setting has an engine of its own, which is started for every round with its recipe."""

    def __init__(self, work: Work, candidates: Mapping[str, Recipe], folder: Path) -> None:
        self._work, self._folder = work, folder
        for name, recipe in candidates.items():
            tuned_recipe.write(recipe, self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / "settings" / f"{tuned_recipe.slug(name)}.yaml"

    def groups(self, left: Sequence[str]) -> list[list[str]]:
        return [[name] for name in left]

    def measure(self, number: int, group: Sequence[str], shown: Shown) -> list[Round]:
        (name,) = group
        shown(f"{name}: starting")
        words = ("--recipe", str(self._file(name)), "--response-store", "none")
        try:
            with served("it", *words, "--engine-log", str(self._folder / "engine.log")) as url:
                return asyncio.run(_measured(self._work, url, None, number, {name: {}}, shown))
        except InvalidRequest as error:
            return [Round(number, name, (), error.message)]


class Running:
    """A server that runs. Requests take turns, each with the fields of a setting."""

    def __init__(
        self, work: Work, url: str, key: str | None, model: str | None, settings: Mapping[str, Fields]
    ) -> None:
        self._work, self._url, self._key, self._model, self._settings = work, url, key, model, settings

    def groups(self, left: Sequence[str]) -> list[list[str]]:
        return [[*left]]

    def measure(self, number: int, group: Sequence[str], shown: Shown) -> list[Round]:
        variants = {name: self._settings[name] for name in group}
        return asyncio.run(
            _measured(self._work, self._url, self._key, number, variants, shown, model=self._model, varied=True)
        )


async def _measured(
    work: Work,
    url: str,
    key: str | None,
    number: int,
    variants: Mapping[str, Fields],
    shown: Shown,
    *,
    model: str | None = None,
    varied: bool = False,
) -> list[Round]:
    """A round at the server `url`. `varied`: it has to accept settings of drafting in requests."""
    transport = HttpTransport(url, key, work.timeout)
    target = Target(Endpoint(transport, url, model=model, limits=Limits(max_requests=10**6)), transport)
    try:
        await target.prepare()
        if varied and "off" not in target.variants:
            raise InvalidRequest(
                f"{url} takes no setting of drafting in requests, so neither method nor number, gate and limits can be "
                "compared there: `tune --speculation MODEL --engine vllm` starts an engine with each of them"
            )
        target.variants = dict(variants)
        plan = msgspec.structs.replace(work.plan, seed=number)
        if work.prompts is not None:
            plan = msgspec.structs.replace(plan, contexts=await target.take(work.prompts))
        run = Run(plan, [target])
        await run.warm_up(lambda _, text: shown(text))
        await run.run(lambda _, text: shown(text), lambda _: None)
        return [_round(number, name, [cell for cell in run.cells if cell.speculation == name]) for name in variants]
    except NotTested as error:
        return [Round(number, name, (), error.because) for name in variants]
    finally:
        await transport.close()


def _round(number: int, name: str, cells: Sequence[Cell]) -> Round:
    """Places that the server has no room for stay empty; if all are, the setting has failed."""
    if any(wave for cell in cells for wave in cell.waves):
        return Round(number, name, tuple(cells))
    reasons = [cell.because for cell in cells if cell.because is not None]
    return Round(number, name, (), (reasons or ["each answer came at once, so none was timed: more --tokens"])[0])
