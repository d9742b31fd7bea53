"""Attacks by what a request says: patterns, JSON, grammars, prompts, and what a server remembers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from benchmarks.attack import wire
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import MODEL, Served, serving, watched
from benchmarks.attack.wire import CHAT

#: What others may be kept waiting, at the 99th percentile, and at worst: two shared cores, and a model that computes.
_P99_MS, _WORST_MS = 100, 2500
#: A small cache for the model, so that its being filled is not taken for a leak.
_SMALL = ("--kv-cache-memory-bytes", str(32 << 20))
_HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": _HI, "max_tokens": 4, "temperature": 0, **fields}


def tool(parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def _patterns(count: int, pattern: str, least: int = 1000) -> dict[str, Any]:
    properties = {f"p{i}": {"type": "string", "pattern": pattern.replace("N", str(least + i))} for i in range(count)}
    return {"type": "object", "properties": properties}


@attack
async def patterns() -> AsyncIterator[Row]:
    async with serving(*_SMALL) as served:
        for least in (200, 400, 600):  # others, so that what is loaded once is not taken for what stays
            await wire.ask(served.port, CHAT, chat(tools=[tool(_patterns(20, r"^\p{L}{1,N}$", least))]))
        for count in (20, 200):
            schema = _patterns(count, r"^\p{L}{1,N}$")
            bodies = {
                "tools": chat(tools=[tool(schema)]),
                "strict off, no calls": chat(tools=[tool(schema)], tool_choice="none", dovetail={"strict": "off"}),
                "response_format": chat(
                    response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
                ),
                "a hard one each": chat(tools=[tool(_patterns(count, r"^(\p{L}|\p{N}\p{L}?){1,N}x$"))]),
            }
            memory, cpu = served.memory, served.cpu
            async with watched(served) as others:
                statuses = [(await wire.ask(served.port, CHAT, body)).status for body in bodies.values()]
            grown = served.memory - memory
            yield Row(
                f"{count} patterns `^\\p{{L}}{{1,N}}$`: {', '.join(bodies)}",
                "others' p99 under 100 ms; memory back",
                f"{others}; {served.cpu - cpu:.1f} s of CPU, {grown:+.0f} MB; {', '.join(map(str, statuses))}",
                others.p99 < _P99_MS and grown < 100 and set(statuses) <= {200, 400},
            )


def _nested(depth: int) -> bytes:
    return json.dumps(chat(messages="@")).replace('"@"', "[" * depth + "]" * depth).encode()


_RAW = json.dumps(chat(temperature="@"))
#: JSON that some readers read otherwise, or not at all.
BODIES: dict[str, bytes] = {
    "arrays nested 100,000 deep": _nested(100_000),
    "arrays nested 3,000,000 deep": _nested(3_000_000),
    "objects nested 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a schema nested 100,000 deep": json.dumps(chat(tools=[tool("@")]))
    .replace('"@"', '{"not":' * 100_000 + "{}" + "}" * 100_000)
    .encode(),
    "1e400": _RAW.replace('"@"', "1e400").encode(),
    "-1e400": _RAW.replace('"@"', "-1e400").encode(),
    "a number of 1,000,000 digits": _RAW.replace('"@"', "1" * 1_000_000).encode(),
    "an exponent of 1,000,000 digits": _RAW.replace('"@"', "1e" + "1" * 1_000_000).encode(),
    "a max_tokens of 4,000 digits": json.dumps(chat(max_tokens="@")).replace('"@"', "1" * 4000).encode(),
    "NaN": _RAW.replace('"@"', "NaN").encode(),
    "a lone surrogate": json.dumps(chat(messages=[{"role": "user", "content": "\ud800"}])).encode(),
    "a NUL in a name": json.dumps(chat(tools=[tool({}, name="a\0b")])).encode(),
    "UTF-16": json.dumps(chat()).encode("utf-16"),
    "bytes that are no UTF-8": json.dumps(chat(stop="@")).encode().replace(b"@", b"\xff"),
    "nothing": b"",
    "a million empty messages": b'{"model":"%s","messages":[%s]}' % (MODEL.encode(), b",".join([b"{}"] * 1_000_000)),
    "a million tools": b'{"model":"%s","messages":[],"tools":[%s]}' % (MODEL.encode(), b",".join([b"{}"] * 1_000_000)),
    "1,000,000 stop strings": json.dumps(chat(stop=["a"] * 1_000_000)).encode(),
    "1,000,000 biases": json.dumps(chat(logit_bias={str(i): 1 for i in range(400_000)})).encode(),
    "numbers of 4,000 digits in arguments": json.dumps(
        chat(messages=[*_HI, {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":' + "1" * 4000 + "}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"}])
    ).encode(),
    "arguments nested 50,000 deep": json.dumps(
        chat(messages=[*_HI, {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 50_000}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"}])
    ).encode(),
}  # fmt: skip
#: Those that are answered: the last of two equal names counts, as in Python and JavaScript; NaN in arguments is text.
_ANSWERED = {
    "numbers of 4,000 digits in arguments",
    "arguments nested 50,000 deep",
    "a duplicate key",
    "a byte order mark",
}
BODIES["a duplicate key"] = json.dumps(chat()).replace('"temperature"', '"max_tokens": 1, "temperature"').encode()
BODIES["a byte order mark"] = b"\xef\xbb\xbf" + json.dumps(chat()).encode()


@attack
async def json_bodies() -> AsyncIterator[Row]:
    async with serving(*_SMALL) as served:
        await wire.ask(served.port, CHAT, chat())
        memory = served.memory
        slowest, statuses = "", {}
        async with watched(served) as others:
            most = 0.0
            for name, body in BODIES.items():
                before = served.cpu
                statuses[name] = (await wire.ask(served.port, CHAT, body)).status
                if served.cpu - before > most:
                    most, slowest = served.cpu - before, name
        wrong = [
            f"{name}: {status}"
            for name, status in statuses.items()
            if status != 400 and not (status == 200 and name in _ANSWERED) and status != 413
        ]
        yield Row(
            f"hostile JSON: {len(BODIES)} bodies",
            "400 with the reason (or 200 where it is valid)",
            f"{'; '.join(wrong) or 'all'}; most CPU {most:.1f} s ({slowest}); {others}; "
            f"{served.memory - memory:+.0f} MB",
            not wrong and others.worst < 2 * _WORST_MS,
        )


def _large_lark(rules: int, words: int) -> str:
    lines = [
        f'r{i}: "(" r{(i + 1) % rules} ")" | ' + " | ".join(f'"w{i}x{j}"' for j in range(words)) for i in range(rules)
    ]
    return "start: r0\n" + "\n".join(lines)


#: Grammars that are large, ambiguous, deep or endless.
GRAMMARS: dict[str, str] = {
    "ambiguous": 'start: "a" start "a" start | "a" start | "a"',
    "more ambiguous": 'start: start start start | "a" | "a" "a" | "(" start ")"',
    "20 rules that nest, 100 words each": _large_lark(20, 100),
    "19 rules that nest, 6 words each": _large_lark(19, 6),
    "200 rules": _large_lark(200, 10),
    "50,000 characters of words": "start: " + " | ".join(f'"word{i}"' for i in range(3_500)),
    "optional words that double": "start: " + " ".join(f'["{chr(97 + i % 26)}"]' for i in range(200)),
    "counted repetitions": "start: " + "(" * 6 + '"a"' + "~1..50)" * 6,
    "a regex with classes": r"start: /(\p{L}{1,50}\p{N}{1,50}){1,50}/",
    "a regex that backtracks": "start: /(a+)+b/",
    "nested 2,000 deep": "start: " + "(" * 2_000 + '"a"' + ")" * 2_000,
    "itself": "start: start",
    "a chain of rules": "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1} "b" | "c"' for i in range(999)) + "\nr999:",
    "terminals of terminals": 'start: T0\n' + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)) + '\nT40: "a"',
}  # fmt: skip


def custom(definition: str, name: str = "c") -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": grammar}}


@attack
async def grammars() -> AsyncIterator[Row]:
    async with serving(*_SMALL) as served:
        await wire.ask(served.port, CHAT, chat(tools=[custom('start: "a"')]))
        memory, times, statuses = served.memory, {}, {}
        async with watched(served) as others:
            for name, definition in GRAMMARS.items():
                before = served.cpu
                body = chat(tools=[custom(definition)], tool_choice="required", max_tokens=64)
                statuses[name] = (await wire.ask(served.port, CHAT, body)).status
                times[name] = served.cpu - before
        slowest = max(times, key=lambda name: times[name])
        yield Row(
            f"hostile Lark grammars: {len(GRAMMARS)}",
            "200 or 400; at most 5 s of CPU; others go on",
            f"most CPU {times[slowest]:.1f} s ({slowest}); {others}; {served.memory - memory:+.0f} MB",
            set(statuses.values()) <= {200, 400} and times[slowest] < 5 and others.worst < _WORST_MS,
        )
        before = served.cpu
        tools = [custom(_large_lark(19, 6).replace("w0x0", f"v{i}"), f"c{i}") for i in range(64)]
        async with watched(served) as others:
            status = (await wire.ask(served.port, CHAT, chat(tools=tools))).status
        yield Row(
            "64 custom tools, each with a large grammar",
            "at most 5 s of CPU; others go on",
            f"{status}; {served.cpu - before:.1f} s of CPU; {others}",
            status in (200, 400) and served.cpu - before < 5 and others.worst < _WORST_MS,
        )


@attack
async def prompts() -> AsyncIterator[Row]:
    async with serving(*_SMALL) as served:
        await wire.ask(served.port, CHAT, chat())
        large = await wire.ask(served.port, "/tokenize", {"prompt": "a b " * 2_600_000})
        async with watched(served) as others:
            before = served.cpu
            under = await wire.ask(served.port, "/tokenize", {"prompt": "Please get the weather " * 340_000})
        yield Row(
            "/tokenize with 10 MB, and with 7.8 MB",
            "413; 200, and others go on",
            f"{large.status}; {under.status} in {served.cpu - before:.1f} s of CPU; {others}",
            (large.status, under.status) == (413, 200) and others.worst < _WORST_MS,
        )
        odd = {"one word of 4 MB": "a" * (4 << 20), "1 MB of emoji": "🤦🏽‍♂️" * 60_000, "blanks": " " * (4 << 20)}
        for name, text in odd.items():
            async with watched(served) as others:
                status = (await wire.ask(served.port, "/tokenize", {"prompt": text})).status
            yield Row(
                f"/tokenize: {name}", "200, and others go on", f"{status}; {others}",
                status == 200 and others.worst < _WORST_MS,
            )  # fmt: skip
        memory = served.memory
        async with watched(served) as others:
            body = {"model": MODEL, "echo": True, "logprobs": 5, "max_tokens": 0}
            prompts = [["hi " * 500] * count for count in (1, 16, 128)]
            scores = [
                (await wire.ask(served.port, "/v1/completions", body | {"prompt": each})).status for each in prompts
            ]
        yield Row(
            "/v1/completions: echo and logprobs of 1, 16 and 128 prompts of 500 tokens",
            "200 (400 beyond the limit); others go on",
            f"{', '.join(map(str, scores))}; {others}; {served.memory - memory:+.0f} MB",
            set(scores) <= {200, 400} and others.worst < 5 * _WORST_MS and served.memory - memory < 500,
        )


@attack
async def memory() -> AsyncIterator[Row]:
    """What a server might remember of requests for ever."""
    async with serving(*_SMALL) as served:
        filler = "x" * 7_000_000
        async for row in _flat(
            served,
            "7 MB requests that are refused with 400, 100 of them",
            ([chat(messages=[{"role": "user", "content": filler}], temperature=9)] for _ in range(100)),
        ):
            yield row
        async for row in _flat(
            served,
            "300 requests, each with a schema of its own",
            (
                [
                    chat(
                        tools=[
                            tool({"type": "object", "properties": {f"a{i}x{j}": {"type": "string"} for j in range(40)}})
                        ]
                    )
                ]
                for i in range(300)
            ),
        ):
            yield row
        async for row in _flat(
            served,
            "60 tools' names",
            (
                [chat(tools=[tool({}, name=f"secret_tool_{i}")], tool_choice="required", max_tokens=60)]
                for i in range(60)
            ),
        ):
            yield row
        page = (await wire.get(served.port, "/metrics")).body
        yield Row(
            "clients' tool names in /metrics", "not shown", f"{page.count(b'secret')} shown", b"secret" not in page
        )
        async for row in _flat(
            served,
            "responses stored: 200 of 200 KB",
            ([{"model": MODEL, "input": "hi", "max_output_tokens": 16, "metadata": {}, "instructions": None,
               "tools": [{"type": "function", "name": f"f{i}", "parameters": {}, "description": "x" * 1000}]}]
             for i in range(200)),
            path="/v1/responses",
        ):  # fmt: skip
            yield row
        odd = ["..%2f..%2fetc%2fpasswd", "resp_" + "a" * 5000, "%00", "'; drop table responses; --".replace(" ", "%20")]
        statuses = [(await wire.get(served.port, f"/v1/responses/{name}")).status for name in odd]
        yield Row(
            "/v1/responses/ with paths, SQL and NUL as ids",
            "404",
            ", ".join(map(str, statuses)),
            set(statuses) == {404},
        )


async def _flat(
    served: Served, name: str, bodies: Iterable[list[dict[str, Any]]], path: str = CHAT
) -> AsyncIterator[Row]:
    """Memory after a fifth of `bodies`, and after all."""
    asked = list(bodies)
    warm = len(asked) // 5
    statuses = set()
    for number, (body,) in enumerate(asked):
        if number == warm:
            before = served.memory
        statuses.add((await wire.ask(served.port, path, body)).status)
    grown = served.memory - before
    yield Row(
        name, "memory flat, but for caches",
        f"{grown:+.0f} MB after the first {warm}; {', '.join(map(str, sorted(statuses)))}",
        grown < 150 and statuses <= {200, 400},
    )  # fmt: skip
