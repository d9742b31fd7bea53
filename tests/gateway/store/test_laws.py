"""What every store does, compared with lists."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.gateway.apis.responses.store import TABLE as RESPONSES
from dovetail.gateway.records.memory import TABLE as ANSWERS
from dovetail.gateway.store.interface import DEFAULT_LIMITS, Entries, Store, StoreError, StoreLimits
from dovetail.gateway.store.sqlite import entries_in
from tests.gateway.store.servers import emptied

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "redis", "postgresql"])


def answer(turn: bytes, record: str, name: str = "a") -> dict[str, Any]:
    return {"place": b"p" + turn, "name": None, "turn": turn, "record": record, "calls": b"[]", "answer": name}


class Model:
    """The entries as a list, oldest first, of all owners: what `Entries` promises, word by word."""

    def __init__(self, limits: StoreLimits) -> None:
        self.limits = limits
        self.rows: list[tuple[str, dict[str, Any], int]] = []

    def put(self, owner: str, entry: dict[str, Any], size: int) -> bool:
        alike = [row for row in self.rows if row[0] == owner and row[1]["turn"] == entry["turn"]]
        same = [row for row in alike if row[1]["record"] == entry["record"]]
        gone = same or alike[:-1]
        rows = [row for row in self.rows if row not in gone]
        for measure, limit in ((lambda row: 1, self.limits.entries), (lambda row: row[2], self.limits.size)):
            new = (owner, entry, size)
            while sum(map(measure, [*rows, new])) > limit:
                shares = {
                    each: sum(measure(row) for row in [*rows, new] if row[0] == each) for each, _, _ in [*rows, new]
                }
                most = max(shares, key=lambda each: (shares[each], each != owner))
                if not any(row[0] == most for row in rows):
                    return False
                rows.remove(next(row for row in rows if row[0] == most))
        self.rows = [*rows, (owner, entry, size)]
        return True

    def find(self, owner: str, key: str, values: set[Any]) -> list[tuple[Any, ...]]:
        return [(e["turn"], e["record"], e["calls"]) for who, e, _ in self.rows if who == owner and e[key] in values]


puts = st.tuples(
    st.just("put"),
    st.sampled_from("abc"),
    st.sampled_from([b"\0", b"t", b"\xff:"]),
    st.sampled_from("rsu"),
    st.integers(1, 60),
)
deletes = st.tuples(st.just("delete"), st.sampled_from("abc"), st.sampled_from("ru"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.one_of(puts, puts, puts, deletes), max_size=25),
    number=st.integers(1, 6),
    room=st.integers(60, 200),
)
def test_a_store_is_a_list_of_what_each_owner_has(
    place: Path | Store, request: pytest.FixtureRequest, steps: list[Any], number: int, room: int
) -> None:
    """Bounded, the oldest of who has most first; two of those that are alike; and no owner finds what another one put.

    Owners differ from what the store makes of them by nothing that a name may have: "a" and "a:b" are two.
    """
    limits = StoreLimits(number, room)
    model = Model(limits)
    with emptied_store(place, request, limits) as entries:
        for step in steps:
            owner = f"key {step[1]}"
            if step[0] == "put":
                entry = answer(step[2], step[3], f"{step[3]}:{step[1]}")
                fits = model.put(owner, entry, step[4])
                with contextlib.nullcontext() if fits else pytest.raises(StoreError, match="share"):
                    entries.of(owner).put(entry, step[4])
            else:
                wanted = {f"{step[2]}:{step[1]}"}
                gone = model.find(owner, "answer", wanted)
                model.rows = [row for row in model.rows if not (row[0] == owner and row[1]["answer"] in wanted)]
                assert entries.of(owner).delete("answer", *wanted) == len(gone)
            for each in ("key a", "key b", "key c"):
                mine = entries.of(each)
                turns = {b"\0", b"t", b"\xff:"}
                found = mine.find(("turn", "record", "calls"), "turn", turns)
                assert sorted(found) == sorted(model.find(each, "turn", turns))
                places = {b"p" + turn for turn in turns}
                assert mine.known("place", places) == {b"p" + turn for turn, _, _ in found}
                assert mine.known("name", {b"n"}) == set() and mine.find(("record",), "turn", set()) == []


@contextlib.contextmanager
def emptied_store(place: Path | Store, request: pytest.FixtureRequest, limits: StoreLimits) -> Iterator[Entries]:
    if isinstance(place, Path):
        with TemporaryDirectory() as folder:
            entries = entries_in(Path(folder) / "s.db", ANSWERS, limits)
            yield entries
            entries.close()
    else:
        emptied(request.getfixturevalue("server"), place)
        yield entries_in(place, ANSWERS, limits)


def test_values_come_back_as_they_were(place: Path | Store) -> None:
    entries = entries_in(place, RESPONSES, DEFAULT_LIMITS).of("key a:b")
    data = bytes(range(256)) * 40
    row = {
        "id": "resp_é",
        "previous": None,
        "input": b"",
        "body": data,
        "record": "ü'\"; --",
        "created": int(time.time()),
    }
    entries.put(row, 10)
    assert entries.find([*row], "id", ["resp_é"]) == [(*row.values(),)]
    for name in ("nobody", "a\0b", "\ud800", "resp_é' OR ''='"):
        if not name.startswith("\ud800"):
            assert entries.find(["id"], "id", [name]) == [] and entries.delete("id", name) == 0
    assert entries.of("key a").find(["id"], "id", ["resp_é"]) == [] and entries.of("key a").delete("id", "resp_é") == 0
    assert entries.delete("id", "resp_é") == 1 and entries.find(["id"], "id", ["resp_é"]) == []


def test_what_is_too_old_is_gone(place: Path | Store) -> None:
    entries = entries_in(place, ANSWERS, StoreLimits(age=2, entries=3))
    now = int(time.time())
    entries.put({**answer(b"old", "r"), "created": now - 100}, 1)
    for i in range(2):
        entries.put({**answer(b"%d" % i, "r"), "created": now + 100}, 1)
    turns = {b"old", b"0", b"1", b"2"}
    assert sorted(turn for (turn,) in entries.find(("turn",), "turn", turns)) == [b"0", b"1"]
    assert entries.known("turn", {b"0", b"old"}) >= {b"0"}
    entries.put({**answer(b"2", "r"), "created": now + 100}, 1)
    assert sorted(turn for (turn,) in entries.find(("turn",), "turn", turns)) == [b"0", b"1", b"2"], (
        "what is old takes room"
    )


def test_thousands_are_found_at_once(place: Path | Store) -> None:
    entries = entries_in(place, ANSWERS, DEFAULT_LIMITS)
    entries.put(answer(b"7", "r"), 1)
    assert entries.find(("turn",), "turn", {b"%d" % i for i in range(3_000)}) == [(b"7",)]
    assert entries.known("place", {b"p%d" % i for i in range(3_000)}) == {b"p7"}


def test_an_entry_above_all_room_is_refused(place: Path | Store) -> None:
    entries = entries_in(place, ANSWERS, StoreLimits(size=100))
    entries.put(answer(b"t", "r"), 100)
    with pytest.raises(StoreError, match="101 bytes"):
        entries.put(answer(b"u", "r"), 101)
    assert entries.find(("turn",), "turn", {b"t"}) == [(b"t",)]
