"""Hostile schemas: each is refused with its JSON pointer, or compiles in bounded time and memory."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.errors import EngineError, SchemaRefused
from dovetail.events import Call, Message
from dovetail.formats.registry import FAMILIES
from dovetail.grammar import FreeText, Grammar, Index, JsonSchema, matcher
from dovetail.grammar.cache import Cache
from dovetail.grammar.schemas import bounds
from dovetail.grammar.schemas.finite import FiniteSchemas
from dovetail.grammar.schemas.merged_size import MergedSize
from dovetail.grammar.schemas.repair import repaired
from dovetail.tokens import Tokenizer
from tests.grammar import hostile
from tests.grammar.test_matcher import allowed

FMT = dovetail.format("kimi_k25")
SPACE = 3 << 30  # bytes that the child may have, the interpreter included
SECONDS = 500  # for all cases together, on a machine that does other things too


def tools(schemas: list[hostile.Schema]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"t{i}", "strict": True, "parameters": hostile.copied(schema)}}
        for i, schema in enumerate(schemas)
    ]


def tool_that_does_not_say(tool: dict[str, Any]) -> dict[str, Any]:
    """The same tool without `strict`, so that unusable parts are removed."""
    return {**tool, "function": {**tool["function"], "strict": None}}


def tried(tokenizer: Tokenizer, requested: list[dict[str, Any]]) -> SchemaRefused | None:
    """Compile, then choose blindly among the allowed tokens: the refusal, or None where an answer could be made. That a
    constraint cannot go on ends its own request, and is no failure of the server."""
    eos = tokenizer.control["<|im_end|>"]
    try:
        grammar = FMT.grammar(requested, tool_choice="required", thinking=False)
        assert grammar is not None
        one = matcher.compile(grammar, tokenizer, [eos])
    except SchemaRefused as refusal:
        return refusal
    head = FMT.write(Message("", "", (Call("functions.t0:0", "t0", ""),)), thinking=False).ids(tokenizer)[:-3]
    for seed in range(2):
        rng, walk = random.Random(seed), one.another()
        assert all(map(walk.advance, head))
        try:
            for _ in range(30):
                walk.forced(4)
                options = sorted(allowed(walk, tokenizer))
                assert options
                token = rng.choice(options)
                assert walk.advance(token)
                if token == eos:
                    break
        except EngineError as error:
            assert "cannot go on" in error.message
    return None


def judged(name: str, refusal: SchemaRefused | None, pointer: str | None) -> None:
    """Check a refusal. `pointer`: the beginning of the pointer; "tools" for all tools; None for no
    refusal."""
    if pointer is None or refusal is None:
        assert pointer is None and refusal is None, (name, pointer, refusal)
    elif pointer == "tools":
        assert refusal.param == "tools"
    else:
        assert refusal.param is not None and refusal.param.startswith("tools[")
        assert f"{refusal.param} cannot be enforced: {pointer}" in refusal.message, (name, refusal.message)
        assert len(refusal.message) < 700


ALL = {name: ([schema], pointer) for name, (schema, pointer) in hostile.CASES.items()} | hostile.TOOLS


def everything(path: str) -> None:
    """All cases, in this process."""
    tokenizer = dovetail.tokenizer(path)
    for name, (schemas, pointer) in ALL.items():
        print(name, flush=True)
        judged(name, tried(tokenizer, tools(schemas)), pointer)
        if any(repaired(schema).left_out for schema in schemas):
            judged(name, tried(tokenizer, [tool_that_does_not_say(tool) for tool in tools(schemas)]), None)


@pytest.mark.slow
def test_no_schema_hangs_the_process_or_fills_its_memory(small_tokenizer_file: Path) -> None:
    """The schemas run in a child process with a memory limit, so that a crash does not end the tests."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))

    code = f"from tests.grammar import test_hostile; test_hostile.everything({str(small_tokenizer_file)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"at {last!r}: {done.stderr[-1500:]}"
    assert last == list(ALL)[-1]


def test_options_of_the_library_in_a_schema_are_ignored(small_tokenizer: Tokenizer) -> None:
    """With these options the library would write `"a" = 1`, and ignore unknown keywords."""
    schema = hostile.CASES["the library's own options"][0]
    grammar = FMT.grammar(tools([schema]), thinking=False)
    assert grammar is not None
    for arguments, ok in (('{"a": "x"}', True), ('{"a"= "x"}', False)):
        sent = Message("", "", (Call("functions.t0:0", "t0", arguments),))
        one = matcher.compile(grammar, small_tokenizer, [small_tokenizer.control["<|im_end|>"]])
        assert all(map(one.advance, FMT.write(sent, thinking=False).ids(small_tokenizer))) is ok


@pytest.mark.untraced  # slow under a tracer, and others run its lines
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_refuses_schemas_out_of_bounds(name: str) -> None:
    """Families read schemas in their own ways before there is a grammar, so each has to check the bounds."""
    fmt = dovetail.format(name)
    for case in ("deep lists", "20,000 keys", "unions times unions", "long chain", "refers to itself at once"):
        schema, pointer = hostile.CASES[case]
        with pytest.raises(SchemaRefused) as caught:
            fmt.grammar(tools([schema]))
        judged(case, caught.value, pointer)
        requested = [tool_that_does_not_say(tool) for tool in tools([schema])]
        assert fmt.grammar(requested, strict="names") is not None


def test_bounds_of_the_same_schemas_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = JsonSchema(hostile.many(3, name="once{}"), "here")
    bounds.check_once([schema])
    monkeypatch.setattr(bounds, "check", None)
    bounds.check_once([schema])
    with pytest.raises(TypeError):
        bounds.check_once([schema, schema])


def test_a_refusal_is_cached(small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = FMT.grammar(tools([hostile.prop({"$ref": "#/nowhere/again"})]), thinking=False)
    assert grammar is not None
    refusals = []
    for _ in range(2):
        with pytest.raises(SchemaRefused) as caught:
            matcher.compile(grammar, small_tokenizer, [1])
        refusals.append(caught.value)
        monkeypatch.setattr(bounds, "check", None)  # it is not compiled again
    assert refusals[0].message == refusals[1].message and refusals[0] is not refusals[1]


def test_threads_compute_a_value_once() -> None:
    store: Cache[object] = Cache(2, 100)
    begun, go = threading.Event(), threading.Event()
    made: list[object] = []

    def make() -> object:
        begun.set()
        assert go.wait(20)
        made.append(object())
        return made[-1]

    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(store.get("k", 1, make))) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    go.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results == made * 5


def test_a_failure_is_not_cached() -> None:
    store: Cache[int] = Cache(2, 100)
    with pytest.raises(ZeroDivisionError):
        store.get("k", 1, lambda: 1 // 0)
    assert store.get("k", 1, lambda: 3) == 3


def test_a_cache_is_bounded_by_number_and_by_size() -> None:
    store: Cache[int] = Cache(3, 100)

    def holds(*keys: str) -> bool:
        """Whether these keys are cached. Asking changes nothing but their order."""
        made: list[str] = []
        for key in keys:
            store.get(key, 1, lambda key=key: made.append(key) or 0)  # type: ignore[misc]
        return not made

    for key in "abc":
        store.get(key, 1, lambda: 0)
    assert holds("a", "b", "c")
    store.get("d", 1, lambda: 0)
    assert holds("b", "c", "d") and not holds("a")
    store.get("large", 1000, lambda: 0)
    assert holds("large")
    store.clear()
    assert not holds("large")


def test_a_broken_matcher_is_built_once_for_all(small_tokenizer: Tokenizer) -> None:
    """Copies share the library's state. The first copy that meets an error builds the matcher again for all copies."""
    eos = [small_tokenizer.control["<|im_end|>"]]
    grammar = FMT.grammar(tools([hostile.string("(.*a.{20}){2}|(.*b.{19}c.*){3}")]), thinking=False)
    assert grammar is not None
    one, other = matcher.compile(grammar, small_tokenizer, eos), matcher.compile(grammar, small_tokenizer, eos)
    before = one._original
    assert other._original is before
    one._rebuild()
    assert one._original is not before
    other._rebuild()
    assert other._original is one._original
    for _ in range(100):
        one._rebuild()
    assert one._copies <= matcher._MAX_COPIES + 1


def resolved(schema: Any) -> Any:
    """A function that returns the targets of plain references within a schema."""
    return lambda part: schema["$defs"].get(part["$ref"].removeprefix("#/$defs/"))


def parts(schema: Any) -> list[dict[str, Any]]:
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return [*([schema] if isinstance(schema, dict) else []), *(part for it in inner for part in parts(it))]


@pytest.mark.parametrize(
    ("definition", "ends"),
    [
        ({"type": "string"}, True),
        ({"$ref": "#/$defs/n"}, False),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, True),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}, False),
        ({"allOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, False),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}}, True),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}, False),
        ({"type": ["array", "null"], "items": {"$ref": "#/$defs/n"}, "minItems": 1}, True),
        ({"type": "array", "prefixItems": [{"$ref": "#/$defs/n"}], "minItems": 1}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}, False),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}, "required": ["a"]}, False),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}, "required": []}, True),
        ({"enum": [{}], "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/other"}}, "required": ["a"]}, True),
    ],
)
def test_which_recursive_schemas_are_finite(definition: dict[str, Any], ends: bool) -> None:
    schema = {"$defs": {"n": definition}}
    assert (definition in FiniteSchemas(parts(schema), resolved(schema))) is ends


def test_a_chain_of_references_is_checked_in_linear_time() -> None:
    """A chain takes as many checks as it has links, from either end."""
    chain = [{"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}, "minItems": 1} for i in range(200)]
    schema = {"$defs": dict(enumerate([*chain, {"type": "null"}]))}
    named = {"$defs": {str(i): it for i, it in schema["$defs"].items()}}
    checks = 0

    class Counted(FiniteSchemas):
        def _is_finite(self, schema: Mapping[str, Any]) -> bool:
            nonlocal checks
            checks += 1
            return super()._is_finite(schema)

    for order in (list(parts(named)), list(parts(named))[::-1]):
        checks = 0
        finite = Counted(order, resolved(named))
        assert all(link in finite for link in chain)
        assert checks <= 3 * len(order)


def test_merged_size_is_the_size_of_all_pairs() -> None:
    """Two unions that apply together become one of all pairs, each with a copy of what is beside the unions."""
    union = {"anyOf": [{"required": [str(i)]} for i in range(10)]}
    sole = MergedSize(lambda part: None, 10**6).of([hostile.copied(union)])
    twice = MergedSize(lambda part: None, 10**6).of([hostile.copied({"allOf": [union, union]})])
    beside = {**union, "properties": {str(i): {} for i in range(100)}}
    assert sole == 0
    assert 100 <= twice <= 1_000
    assert 1_000 <= MergedSize(lambda part: None, 10**6).of([hostile.copied(beside)]) <= 2_000
    many = {"allOf": [union] * 9}
    assert MergedSize(lambda part: None, 1_000).of([hostile.copied(many)]) > 1_000


def test_merged_size_of_a_recursive_schema_is_finite() -> None:
    node: dict[str, Any] = {"allOf": [{"$ref": "n"}], "properties": {"a": {"$ref": "n"}, "b": {"$ref": "n"}}}
    assert MergedSize(lambda part: node, 10**6).of([node, {"properties": {"a": node}}]) < 10**6


def test_bounds_of_all_tools_name_the_tool_that_exceeds_them() -> None:
    with pytest.raises(SchemaRefused, match="more than 5000") as caught:
        bounds.check([JsonSchema(hostile.many(900), f"tools[{i}]") for i in range(9)])
    assert caught.value.param == "tools[5]"


def test_different_grammars_have_different_cache_keys(small_tokenizer: Tokenizer) -> None:
    eos = [small_tokenizer.control["<|im_end|>"]]
    one, other = (matcher.compile(Grammar(node), small_tokenizer, eos) for node in (FreeText(), Index()))
    assert allowed(one, small_tokenizer) != allowed(other, small_tokenizer)
