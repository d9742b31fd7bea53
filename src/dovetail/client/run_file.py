"""A file with the results of a run, one JSON line each, so that a run that was stopped can go on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dovetail.errors import InvalidRequest

_Header = TypeVar("_Header", bound=msgspec.Struct)


class RunFile:
    """The results of an earlier run in `file`, to which new ones are added. Without a file, nothing is written.

    The first line is `header`, whose type has a tag. `same` compares it with the header of the earlier run. If they
    differ, `InvalidRequest` is raised; `of` says in its message what a header tells, and `advice` what to do.
    """

    def __init__(
        self,
        file: Path | None,
        header: _Header,
        of: str,
        advice: str,
        same: Callable[[_Header, _Header], bool] = operator.eq,
    ) -> None:
        self._file = file
        self._lines: list[bytes] = []
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        if not (file.exists() and file.stat().st_size):
            file.write_bytes(msgspec.json.encode(header) + b"\n")
            return
        content = file.read_bytes()
        if not content.endswith(b"\n"):  # the last line of a run that was killed
            with file.open("ab") as end:
                end.write(b"\n")
        first, *self._lines = content.split(b"\n")
        try:
            earlier = msgspec.json.decode(first, type=type(header))
        except msgspec.DecodeError:
            raise InvalidRequest(f"{file} is no journal of such a run: {advice}") from None
        if not same(earlier, header):
            raise InvalidRequest(f"{file} belongs to a run with other {of}: {advice}")

    def results(self, decoder: msgspec.json.Decoder[Any]) -> list[Any]:
        """The earlier results, without broken lines: a run may have been killed while it wrote one."""
        results = []
        for line in self._lines:
            try:
                results.append(decoder.decode(line))
            except msgspec.DecodeError:
                continue
        return results

    def add(self, results: Iterable[msgspec.Struct]) -> None:
        """Write `results`."""
        if self._file is not None:
            with self._file.open("ab") as file:
                file.writelines(msgspec.json.encode(result) + b"\n" for result in results)
