"""The metrics of several worker processes on one page: each sample with the label `worker`."""

from __future__ import annotations

from collections.abc import Mapping

_UP = "dovetail_worker_up"


def merged(pages: Mapping[str, bytes | None]) -> bytes:
    """The pages of all workers, by their names, in Prometheus' text format. None: that worker did not answer.

    The samples of one metric stand together, under one head, as the format demands.
    """
    families: dict[str, list[str]] = {_UP: [f"# HELP {_UP} Whether this worker answers", f"# TYPE {_UP} gauge"]}
    families[_UP] += [f'{_UP}{{worker="{worker}"}} {float(page is not None)}' for worker, page in pages.items()]
    heads: set[str] = set()
    for worker, page in pages.items():
        samples = families[_UP]
        for line in (page or b"").decode().splitlines():
            if line.startswith("# HELP "):
                samples = families.setdefault(line.split(" ", 3)[2], [])
            if not line.startswith("#"):
                samples.append(_labelled(line, worker))
            elif line not in heads:
                heads.add(line)
                samples.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines).encode()


def _labelled(sample: str, worker: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
