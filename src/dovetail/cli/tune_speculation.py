"""`dovetail tune --speculation`: which way of drafting is the fastest here, on these prompts. Ends in a recipe.

An engine that Dovetail starts is started with each setting in turn, again and again. At a server that runs, requests
vary what they can.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dovetail.bench.plan import KINDS, Kind, Plan, parse_matrix
from dovetail.bench.race import Race, Round
from dovetail.bench.result import machine
from dovetail.cli import tuned_recipe, tuning_report
from dovetail.cli.bench import MATRIX
from dovetail.cli.files import endpoint_key, print_json
from dovetail.cli.own_prompts import own_prompts
from dovetail.cli.plan import resolved
from dovetail.cli.tuned_recipe import Setting
from dovetail.cli.tuning_report import Result
from dovetail.cli.tuning_rounds import Rounds, Running, Started, Work
from dovetail.client.run_file import RunFile
from dovetail.client.transport import base_of
from dovetail.errors import InvalidRequest
from dovetail.plan.recipe import Recipe

_INTERRUPTED = 130
_DEMO_MATRIX = "256,1k x 1"
_ROUND = msgspec.json.Decoder(Round)
_GATES = ("off", "measured")


class Header(msgspec.Struct, frozen=True, tag="dovetail tune 1"):
    """The first line of a folder's rounds. `settings`: by name, what each is started with. `prompts`: a digest of the
    user's own."""

    url: str | None
    model: str | None
    settings: dict[str, dict[str, Any]]
    plan: Plan
    prompts: str | None


def run(arguments: argparse.Namespace) -> int:
    """Exit codes: 0 a recipe is written; 2 nothing could be compared; 130 stopped."""
    work, folder = _work(arguments), Path(arguments.folder)
    settings, candidates = _settings(arguments)
    url = base_of(arguments.model) if _is_url(arguments.model) else None
    prompts = None if work.prompts is None else hashlib.sha256(msgspec.json.encode(work.prompts)).hexdigest()
    compared = {name: recipe.settings for name, recipe in candidates.items()}
    header = Header(url, arguments.model_name, compared, work.plan, prompts)
    file = RunFile(folder / "rounds.jsonl", header, "models, settings or prompts", "choose another --folder")
    rounds: list[Round] = file.results(_ROUND)
    if url is None:
        measuring: Rounds = Started(work, candidates, folder)
    else:
        key = endpoint_key(arguments.api_key_file, "OPENAI_API_KEY")
        fields = {name: setting.fields for name, setting in settings.items()}
        measuring = Running(work, url, key, arguments.model_name, fields)
    began, stopped = time.monotonic(), False
    try:
        _measure(arguments, measuring, [*settings], rounds, file)
    except KeyboardInterrupt:
        stopped = True
    race = Race([*settings], rounds)
    result = Result(
        machine(), _date(), work.plan, race.standings(), race.by_place(), race.best, race.left, time.monotonic() - began
    )
    if race.best is not None and not stopped:
        result = _with_recipe(result, race, candidates[race.best], folder, arguments)
    return _report(result, arguments, stopped=stopped)


def _work(arguments: argparse.Namespace) -> Work:
    contexts, concurrencies = parse_matrix(arguments.matrix or (_DEMO_MATRIX if arguments.model is None else MATRIX))
    kinds: list[Kind] = [kind for kind in KINDS if kind in _words(arguments.kinds, KINDS, "--kinds")]
    if arguments.tokens < 2:
        raise InvalidRequest("--tokens must be 2 or more: the speed is measured after the first token")
    plan = Plan(contexts, concurrencies, tuple(kinds), arguments.tokens, arguments.requests, 0, alike=True)
    if arguments.prompts is None:
        return Work(plan, None, arguments.timeout)
    own = msgspec.structs.replace(plan, contexts=(), kinds=("own",))
    return Work(own, own_prompts(Path(arguments.prompts)), arguments.timeout)


def _settings(arguments: argparse.Namespace) -> tuple[dict[str, Setting], dict[str, Recipe]]:
    """The settings to compare, by name, and the recipe of each."""
    numbers = [int(word) for word in _words(arguments.numbers, tuple(map(str, range(1, 65))), "--draft-tokens")]
    gates = _words(arguments.gates, _GATES, "--gates")
    source = f"`dovetail tune --speculation` on {machine()}, {_date()}"
    if _is_url(arguments.model):
        if arguments.methods:
            raise InvalidRequest("--methods: a server that runs drafts as it was started, only the number can vary")
        settings = tuned_recipe.grid([""], numbers, gates)
        of_running = [Recipe(name="running", source=source, settings=each.values) for each in settings]
        return _by_name(settings), dict(zip(_by_name(settings), of_running, strict=True))
    plan = resolved(arguments)
    if plan.value("engine") not in ("embedded", "vllm"):
        raise InvalidRequest("a server that runs is tuned as `tune --speculation URL`, without --engine")
    methods = arguments.methods.split(",") if arguments.methods else tuned_recipe.methods(plan)
    settings = tuned_recipe.grid(methods, numbers, gates)
    return _by_name(settings), {each.name: tuned_recipe.recipe(plan, each, source) for each in settings}


def _by_name(settings: Sequence[Setting]) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


def _is_url(model: str | None) -> bool:
    return model is not None and model.startswith(("http://", "https://"))


def _words(text: str, known: Sequence[str], option: str) -> list[str]:
    words = [*dict.fromkeys(word.strip() for word in text.split(","))]
    if unknown := [word for word in words if word not in known]:
        listed = ", ".join(known) if len(known) < 10 else f"numbers from {known[0]} to {known[-1]}"
        raise InvalidRequest(f"{option} knows {listed}, not {unknown[0]!r:.80}")
    return words


def _date() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _measure(
    arguments: argparse.Namespace, measuring: Rounds, settings: Sequence[str], rounds: list[Round], file: RunFile
) -> None:
    """Rounds until one setting is left, all rounds are made, or the time is over. Each is added to `rounds`."""
    console, began = Console(stderr=True), time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for number in range(1, arguments.rounds + 1):
            race = Race(settings, rounds)
            if len(race.left) < 2 or time.monotonic() - began > 60 * arguments.minutes:
                break
            title = f"round {number} of {arguments.rounds}, {len(race.left)} settings left"
            turn = (number - 1) % len(race.left)
            groups = measuring.groups([*race.left[turn:], *race.left[:turn]])
            missing = [group for group in groups if not all(race.measured(name, number) for name in group)]
            bar.update(task, completed=(number - 1) * len(groups), total=arguments.rounds * len(groups))
            for group in missing:
                made = measuring.measure(
                    number,
                    group,
                    lambda text, title=title: bar.update(task, description=f"{title}; {text}"),  # type: ignore[misc]
                )
                bar.advance(task)
                rounds += made
                file.add(each for each in made if each.because is None)  # what failed is tried again by the next run
                for each in made:
                    if each.because is not None:
                        console.print(f"{each.setting} is given up: {each.because}", style="yellow", markup=False)
            if not console.is_terminal:
                console.print(title, style="dim")


def _with_recipe(result: Result, race: Race, chosen: Recipe, folder: Path, arguments: argparse.Namespace) -> Result:
    """The result with the recipe of its best setting, which is written to the folder."""
    assert result.best is not None
    limits = {} if result.best == tuned_recipe.NONE else race.limits(result.best)
    file = folder / "recipe.yaml"
    prompts = f"own prompts ({arguments.prompts})" if arguments.prompts is not None else "made-up prompts"
    recipe = tuned_recipe.tuned(chosen, result.best, limits, result.standings, f"{prompts}, {result.machine}")
    tuned_recipe.write(recipe, file)
    return msgspec.structs.replace(result, limits=limits, recipe=str(file))


def _report(result: Result, arguments: argparse.Namespace, *, stopped: bool) -> int:
    console = Console(highlight=False, stderr=arguments.json)
    if arguments.json:
        print_json(result)
    tuning_report.show(result, console)
    if result.recipe is not None:
        picture = Path(arguments.folder) / "picture.svg"
        tuning_report.draw(result, picture)
        model = f"{'MODEL ' if _is_url(arguments.model) else ''}--recipe {shlex.quote(result.recipe)}"
        console.print(f"picture: {picture}", markup=False, soft_wrap=True)
        console.print(f"dovetail serve {model}", style="bold green", markup=False, soft_wrap=True)
    if stopped:
        console.print("stopped; what was measured is kept, and the same command goes on", style="yellow")
        return _INTERRUPTED
    return 0 if result.recipe is not None else 2
