"""`python -m benchmarks.constraint.prove`: whatever the weights, a finished call is valid.

Models of random weights (`weights`) answer requests for calls at temperature 1, many at once, with speculation on,
through the embedded engine and the format's own reader. A validator that shares no code with the constraint
(jsonschema, 2020-12, with formats) checks every finished call against its tool's schema. A call that `max_tokens` cuts
off is not finished and is counted separately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
from rich.console import Console

import dovetail
from benchmarks import tables
from benchmarks.constraint import findings as report
from benchmarks.constraint import schemas, weights
from benchmarks.constraint.findings import Findings
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, Sampling
from dovetail.engine.settings import EngineSettings
from dovetail.errors import EngineError, InvalidRequest, RenderError
from dovetail.events import CallArguments, CallEnd, CallStart, Defect, Event
from dovetail.formats.base import Format, Strict
from dovetail.grammar import ControlToken, Grammar, Node, matcher
from dovetail.tokens import Prompt, Segment, Tokenizer

#: Some names begin others, and contain text that surrounds names in some family.
NAMES = ("get", "get_weather", "get_weather2", "get.weather", "get-weather", "g", "ns.get_weather", "call_get", "json")
_REQUEST = [{"role": "user", "content": "Call a tool."}]
_WALLE = Path(__file__).parents[3] / "shared" / "data" / "schemas" / "walle"
#: The most completions that are begun for each required call.
_PATIENCE = 3
Tick = Callable[[int], None]


@dataclass
class _Case:
    """A request with its counts: required, finished and running calls, and completions begun."""

    name: str
    tools: Sequence[Mapping[str, Any]]
    thinking: bool
    required: int
    left_open: bool = False
    prompt: tuple[int, ...] = ()
    grammar: Grammar | None = None
    constraint: matcher.Matcher | None = None
    finished: int = 0
    running: int = 0
    begun: int = 0
    validators: dict[str, Any] = field(default_factory=dict)
    left: frozenset[str] = frozenset()  # to the check: pointers of keywords that the lint names

    @property
    def open(self) -> bool:
        return self.finished + self.running < self.required and self.begun < _PATIENCE * self.required


def prove(
    name: str,
    tools: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    calls: int,
    strict: Strict = "schema",
    seed: int = 0,
    batch: int = 64,
    draft_tokens: int = 3,
    max_tokens: int = 384,
    tick: Tick = lambda count: None,
) -> Findings:
    """At least `calls` calls for each of `tools`, by the format `name` under a model drawn with `seed`.

    `tick` is called with the number of calls that have finished.
    """
    fmt = dovetail.format(name)
    findings = Findings(name, strict, len(tools))
    cases = [_Case(case, its, i % 2 == 0, calls) for i, (case, its) in enumerate(tools.items())]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prompts = [_prompt(fmt, case) for case in cases]
        for case in cases:
            try:
                case.grammar = fmt.grammar(case.tools, tool_choice="required", strict=strict, thinking=case.thinking)
            except InvalidRequest as refusal:
                findings.refused[case.name] = refusal.message
        weights.write(Path(folder), _controls(fmt, prompts, cases), fmt.end_of_turn, seed)
        engine = EmbeddedEngine(
            Path(folder) / "target",
            Path(folder) / "drafter",
            EngineSettings(
                draft_tokens=draft_tokens,
                max_batch=batch,
                max_batched_tokens=2048,
                kv_cache_memory_bytes=1 << 28,
                threads=1,
            ),
        )
        tokenizer = dovetail.tokenizer(Path(folder) / "target")
        ends = tuple(tokenizer.control[literal] for literal in fmt.end_of_turn)
        for case, prompt in zip(cases, prompts, strict=True):
            if case.grammar is not None:
                _ready(case, case.grammar, prompt, tokenizer, ends, strict, findings)
        run = _Run(fmt, tokenizer, engine, findings, max_tokens, seed, tick)
        asyncio.run(run.all([case for case in cases if case.constraint is not None], batch))
    findings.seconds = time.perf_counter() - started
    findings.fewer = {case.name: case.finished for case in cases if case.constraint and case.finished < calls}
    return findings


def _prompt(fmt: Format, case: _Case) -> Prompt:
    try:
        prompt = fmt.render(_REQUEST, case.tools, thinking=case.thinking)
        case.left_open = fmt.left_open(prompt)
    except RenderError:  # the family's prompts come from a model's own template
        prompt = Prompt((Segment(_REQUEST[0]["content"], False),))
        case.thinking = False
    return prompt


def _controls(fmt: Format, prompts: Sequence[Prompt], cases: Sequence[_Case]) -> list[str]:
    """Every control token that is read or written, in a fixed order."""
    controls = [segment.text for prompt in prompts for segment in prompt.segments if segment.control]
    controls += (literal for case in cases if case.grammar is not None for literal in _named(case.grammar.root))
    return list(dict.fromkeys((*controls, *fmt.end_of_turn)))


def _named(node: Node) -> Iterator[str]:
    if isinstance(node, ControlToken):
        yield node.literal
    for name in node.__struct_fields__:
        child = getattr(node, name)
        child = tuple(child.values()) if isinstance(child, Mapping) else child
        for inner in child if isinstance(child, tuple) else (child,):
            if isinstance(inner, msgspec.Struct):
                yield from _named(cast(Node, inner))


def _ready(
    case: _Case,
    grammar: Grammar,
    prompt: Prompt,
    tokenizer: Tokenizer,
    ends: tuple[int, ...],
    strict: Strict,
    findings: Findings,
) -> None:
    """Compile the grammar of a case, or record why it is refused."""
    try:
        case.constraint = matcher.compile(grammar, tokenizer, ends)
    except InvalidRequest as refusal:
        findings.refused[case.name] = refusal.message
        return
    case.prompt = tuple(prompt.ids(tokenizer))
    case.left = frozenset(pointer for _, pointer in grammar.unenforced("lark"))
    for tool in case.tools:
        function = tool["function"]
        schema = function["parameters"] if strict == "schema" else {"type": "object"}
        case.validators[function["name"]] = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )


@dataclass
class _Run:
    """Completions, as many at once as the engine runs."""

    fmt: Format
    tokenizer: Tokenizer
    engine: EmbeddedEngine
    findings: Findings
    max_tokens: int
    seed: int
    tick: Tick

    async def all(self, cases: Sequence[_Case], batch: int) -> None:
        self._cases = deque(cases)
        await self.engine.start()
        try:
            await asyncio.gather(*(self._work() for _ in range(batch)))
        finally:
            await self.engine.stop()

    async def _work(self) -> None:
        while (case := self._next()) is not None:
            case.running += 1
            case.begun += 1
            await self._answer(case)
            case.running -= 1

    def _next(self) -> _Case | None:
        # A completion that is cut off may have to be repeated, so a case ends only when none of its completions runs.
        while self._cases and not self._cases[0].open and not self._cases[0].running:
            self._cases.popleft()
        return next((case for case in self._cases if case.open), None)

    async def _answer(self, case: _Case) -> None:
        assert case.constraint is not None
        findings = self.findings
        completion = Completion(
            case.prompt,
            self.max_tokens,
            Sampling(seed=self.seed + findings.completions),
            constraint=case.constraint.another(),
        )
        findings.completions += 1
        ids: list[int] = []
        finish = "length"
        try:
            async with aclosing(cast(Any, self.engine.complete(completion))) as batches:
                async for batch in batches:
                    ids += batch.ids
                    findings.drafted += batch.drafted
                    findings.accepted += batch.accepted
                    findings.forced += batch.forced
                    finish = batch.finish or finish
        except EngineError as error:
            why = f"{case.name}: {error.message}"
            findings.failed[why] = findings.failed.get(why, 0) + 1
        findings.tokens += len(ids)
        findings.cut_off += finish == "length"
        reader = self.fmt.reader(case.tools, thinking=case.left_open, tokenizer=self.tokenizer)
        self._check(case, [*reader.feed("", ids), *reader.finish(cast(Any, finish))])

    def _check(self, case: _Case, events: Sequence[Event]) -> None:
        findings = self.findings
        names = [event.name for event in events if isinstance(event, CallStart)]
        arguments = [""] * len(names)
        for event in events:
            if isinstance(event, CallArguments):
                arguments[event.index] += event.fragment
            elif isinstance(event, Defect):
                findings.defects[event.kind] = findings.defects.get(event.kind, 0) + 1
        findings.undeclared += (name for name in names if name not in case.validators)
        for index in (event.index for event in events if isinstance(event, CallEnd)):
            case.finished += 1
            findings.calls += 1
            if case.finished <= case.required:
                self.tick(1)
            if names[index] in case.validators:
                self._judge(case, names[index], arguments[index])

    def _judge(self, case: _Case, name: str, arguments: str) -> None:
        findings = self.findings
        validator = case.validators[name]
        errors = list(validator.iter_errors(json.loads(arguments)))
        broken = [next((it for it in _pointers(validator.schema, error) if it in case.left), "") for error in errors]
        if not errors:
            findings.valid += 1
        elif all(broken):
            findings.left += 1
            for pointer in dict.fromkeys(broken):
                key = f"{case.name} {pointer}"
                findings.named[key] = findings.named.get(key, 0) + 1
        else:
            findings.invalid.append(f"{case.name}: {arguments}: {errors[0].message}")


def _pointers(schema: Any, error: Any) -> Iterator[str]:
    """The JSON pointers of the violated keyword, of the references on the way to it, and of keywords in its branches. A
    definition has its own pointer."""
    place: list[str] = []
    value = schema
    for step in error.absolute_schema_path:
        if isinstance(value, dict) and step not in value and "$ref" in value:  # jsonschema leaves `$ref` out of paths
            yield "/".join(("#", *place, "$ref"))
            place = value["$ref"].split("/")[1:]
            value = _at(schema, place)
        place.append(str(step).replace("~", "~0").replace("/", "~1"))
        value = _at(value, [place[-1]])
    yield "/".join(("#", *place))
    for inner in error.context or ():
        yield from _pointers(schema, inner)


def _at(schema: Any, place: list[str]) -> Any:
    """The part of a schema at a JSON pointer; None if there is none, as for a reference relative to an `$id`."""
    for key in place:
        try:
            schema = schema[int(key) if isinstance(schema, list) else key.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            return None
    return schema


def main() -> int:
    """Prove and print. Returns 1 if a call violates a keyword that the lint does not list."""
    options = _options()
    try:
        read = schemas.read(options.schemas) if options.schemas else {}
    except (OSError, ValueError) as error:
        sys.exit(f"python -m benchmarks.constraint.prove: {error}")
    parameters = dict(list((read | schemas.made_up()).items())[: options.first])
    one_each = {name: [_tool("f", schema)] for name, schema in parameters.items()}
    several = {"names": [_tool(name, {"type": "object", "not": {}}) for name in NAMES]}
    controls: list[Findings] = []
    with tables.progress(Console(stderr=True)) as progress:
        for name in options.formats:
            for strict, tools, calls in (
                ("schema", one_each, options.calls),
                ("names", several, options.calls * 10),
            ):
                bar = progress.add_task(f"{name}, {strict}", total=calls * len(tools))
                controls.append(
                    prove(
                        name,
                        tools,
                        calls=calls,
                        strict=cast(Strict, strict),
                        seed=options.seed,
                        batch=options.batch,
                        draft_tokens=options.draft_tokens,
                        max_tokens=options.max_tokens,
                        tick=lambda count, bar=bar: progress.advance(bar, count),  # type: ignore[misc]
                    )
                )
    if options.json:
        versions = {"dovetail": dovetail.__version__, "machine": tables.machine()}
        proved = {
            "options": tables.plain(options),
            **versions,
            "findings": [msgspec.to_builtins(it) for it in controls],
        }
        print(json.dumps(proved, indent=2))
    else:
        tables.show(
            [report.sheet(controls)], list(report.notes(controls)), as_markdown=options.markdown, words=report.WORDS
        )
    return 0 if all(it.proved for it in controls) else 1


def _tool(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constraint.prove", description=__doc__)
    folder = _WALLE if _WALLE.is_dir() else None
    of = "folder of */valid.jsonl, a schema a line (default: walle's, where it lies beside this checkout)"
    parser.add_argument("--schemas", type=Path, default=folder, metavar="DIR", help=of)
    parser.add_argument("--calls", type=int, default=100, help="finished calls for each schema (default 100)")
    parser.add_argument("--formats", nargs="+", default=["kimi_k25"], metavar="NAME")
    parser.add_argument("--first", type=int, metavar="N", help="only so many of the schemas")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, and of the first answer")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=384, help="of an answer (default 384)")
    parser.add_argument("--json", action="store_true", help="print findings, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
