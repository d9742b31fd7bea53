"""One HTML page without scripts or links to elsewhere: every matrix as a heat map, and curves over concurrency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from dovetail.bench.comparison import CellComparison, Comparison
from dovetail.bench.figures import Cell, Ratio, Times
from dovetail.bench.result import Result
from dovetail.client.statistics import Interval

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 } caption { text-align: left; font-weight: 600 }
th, td { padding: .3rem .7rem; text-align: right; font-weight: 400 } td.bad { outline: 2px solid #b3261e }
.row { display: flex; flex-wrap: wrap; gap: 1rem 3rem; align-items: end } figure { margin: 0 }
.minor { opacity: .7 } pre { white-space: pre-wrap }
svg text { font: 12px system-ui, sans-serif; fill: currentColor } .bad { color: #b3261e }
"""
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _RIGHT = 460, 250, 48, 36, 110


class _Map(NamedTuple):
    """A figure of every cell. `shade`: the colour of a value, given the largest of all."""

    title: str
    of: Callable[[Cell], float | None]
    shade: Callable[[float, float], str]


def _blue(value: float, largest: float) -> str:
    return f"rgb(66 105 208 / {0.75 * value / largest:.2f})" if largest > 0 else "none"


def _around_one(value: float, largest: float) -> str:
    """Green above 1 and red below, in full at twice and at half."""
    colour = "60 169 81" if value >= 1 else "255 114 92"
    return f"rgb({colour} / {0.75 * min(abs(math.log2(value)), 1.0):.2f})"


def _median(times: Times | None) -> float | None:
    return None if times is None else times.p50


_MAPS = (
    _Map("decode of a request, tokens/s", lambda cell: _median(cell.decode_tokens_per_second), _blue),
    _Map("decode of all requests, tokens/s", lambda cell: cell.decode_tokens_per_second_all, _blue),
    _Map("time to the first token, ms", lambda cell: _median(cell.ttft_ms), _blue),
    _Map("tokens a step", lambda cell: cell.acceptance_length, _blue),
)


def html(result: Result) -> str:
    """The page of a result."""
    groups = groupby(
        sorted(result.cells, key=lambda cell: (cell.kind, cell.endpoint)),  # stable: the order of the plan stays
        key=lambda cell: (cell.kind, cell.endpoint),
    )
    parts = [_of_endpoint(f"{endpoint}: {kind}", [*cells]) for (kind, endpoint), cells in groups]
    return _page(f"{_command(result)}{_ratios(result.ratios)}{''.join(parts)}{_conditions(result)}")


def comparison_html(before: Result, after: Result, comparison: Comparison) -> str:
    """The page of two results beside each other: decode speed before and after, and the ratio, for each variant."""
    parts = []
    ordered = sorted(comparison.cells, key=_variant)  # stable: the order of the plan stays
    for (endpoint, kind, speculation), group in groupby(ordered, key=_variant):
        cells = {(cell.context, cell.concurrency): cell for cell in group}
        largest = max(max(cell.before, cell.after) for cell in cells.values())
        before_and_after = (
            {place: _speed(cell.before, largest) for place, cell in cells.items()},
            {place: _speed(cell.after, largest) for place, cell in cells.items()},
            {place: _ratio(cell.ratio, cell.interval) for place, cell in cells.items()},
        )
        titles = "before, tokens/s", "after, tokens/s", "after by before"
        tables = "".join(
            _table(title, squares, _square_of(squares)) for title, squares in zip(titles, before_and_after, strict=True)
        )
        where = "" if endpoint == 0 else ", the second endpoint"
        parts.append(f'<h2>{kind}, drafting {speculation}{where}</h2>\n<div class="row">{tables}</div>\n')
    interval = comparison.interval
    whole = f"{comparison.ratio:.3f} times as fast as before ({interval.low:.3f} to {interval.high:.3f})"
    lines = [f"<li>{name}: not compared, because only one result has figures</li>\n" for name in comparison.missing]
    lines += [f'<li class="bad">{name}: calls are wrong in the later result</li>\n' for name in comparison.wrong]
    runs = "".join(
        f"<h2>{name}</h2>\n{_command(result)}{_conditions(result)}"
        for name, result in (("Before", before), ("After", after))
    )
    return _page(f"<p>all cells: {whole}</p>\n{''.join(parts)}<ul>{''.join(lines)}</ul>\n{runs}")


def _variant(cell: CellComparison) -> tuple[int, str, str]:
    return cell.endpoint, cell.kind, cell.speculation


def _square_of(squares: dict[tuple[int, int], str]) -> Callable[[int, int], str]:
    return lambda context, concurrency: squares.get((context, concurrency), "<td></td>")


def _speed(value: float, largest: float) -> str:
    return f'<td style="background: {_blue(value, largest)}">{_number(value)}</td>'


def _page(body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>dovetail bench</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>dovetail bench</h1>\n{body}</body>\n</html>\n"
    )


def _command(result: Result) -> str:
    models = ", ".join(f"{endpoint} serves {model}" for endpoint, model in result.models.items() if model is not None)
    return f"<pre>{escape(' '.join(result.command))}</pre>\n<p>{escape(models)}</p>\n"


def _conditions(result: Result) -> str:
    return f'<p class="minor">{escape(result.conditions)}.</p>\n'


def _of_endpoint(title: str, cells: Sequence[Cell]) -> str:
    by_drafting: dict[str, list[Cell]] = {}
    for cell in cells:
        by_drafting.setdefault(f"drafting {cell.speculation}", []).append(cell)
    maps = "".join(
        f'<div class="row">{"".join(_heat_map(each, name, of, cells) for name, of in by_drafting.items())}</div>\n'
        for each in _MAPS
        if any(each.of(cell) is not None for cell in cells)
    )
    top = max((cell.decode_tokens_per_second_all or 0.0 for cell in cells), default=0.0)
    curves = "".join(_curves(name, of, top) for name, of in by_drafting.items())
    return f'<h2>{escape(title)}</h2>\n{maps}<div class="row">{curves}</div>\n{_problems(cells)}'


def _heat_map(figure: _Map, name: str, cells: Sequence[Cell], every: Sequence[Cell]) -> str:
    """Contexts down, requests at once across. The maps of all ways of drafting have one scale."""
    largest = max((value for cell in every if (value := figure.of(cell)) is not None), default=0.0)
    places = {(cell.context, cell.concurrency): cell for cell in cells}

    def square(context: int, concurrency: int) -> str:
        cell = places.get((context, concurrency))
        value = None if cell is None else figure.of(cell)
        if cell is None or value is None:
            return "<td></td>"
        wrong = ' class="bad"' if cell.calls.wrong else ""
        return f'<td{wrong} style="background: {figure.shade(value, largest)}">{_number(value)}</td>'

    return _table(f"{figure.title}, {name}", list(places), square)


def _table(title: str, places: Iterable[tuple[int, int]], square: Callable[[int, int], str]) -> str:
    contexts, concurrencies = (list(dict.fromkeys(axis)) for axis in zip(*places, strict=True))
    head = "".join(f'<th scope="col">{concurrency} at once</th>' for concurrency in concurrencies)
    rows = "".join(
        f'<tr><th scope="row">{_tokens(context)}</th>{"".join(square(context, each) for each in concurrencies)}</tr>\n'
        for context in contexts
    )
    return f"<table><caption>{escape(title)}</caption>\n<tr><td></td>{head}</tr>\n{rows}</table>\n"


def _ratios(ratios: Sequence[Ratio]) -> str:
    """The ratios of each pair of variants, as one heat map for each kind."""
    parts = []
    ordered = sorted(ratios, key=lambda ratio: (ratio.numerator, ratio.denominator, ratio.kind))
    for (numerator, denominator, kind), group in groupby(
        ordered, key=lambda ratio: (ratio.numerator, ratio.denominator, ratio.kind)
    ):
        places = {(ratio.context, ratio.concurrency): ratio for ratio in group}

        def square(context: int, concurrency: int, places: dict[tuple[int, int], Ratio] = places) -> str:
            ratio = places.get((context, concurrency))
            if ratio is None:
                return "<td></td>"
            return _ratio(ratio.decode, ratio.interval)

        parts.append(_table(f"{kind}: {numerator} over {denominator}", places, square))
    title = "<h2>Decode speed of one over the other, with 95 % intervals</h2>\n"
    return f'{title}<div class="row">{"".join(parts)}</div>\n' if parts else ""


def _ratio(value: float, interval: Interval | None) -> str:
    within = "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"
    return f'<td style="background: {_around_one(value, 2.0)}">{value:.2f}<br><small>{within}</small></td>'


def _curves(name: str, cells: Sequence[Cell], top: float) -> str:
    """Decode speed of all requests over how many are sent at once, a line for each context. `top`: of the scale."""
    lines: dict[int, list[tuple[float, float]]] = {}
    for cell in cells:
        if cell.decode_tokens_per_second_all is not None:
            lines.setdefault(cell.context, []).append((cell.concurrency, cell.decode_tokens_per_second_all))
    points = [point for line in lines.values() for point in line]
    if len({x for x, _ in points}) < 2:
        return ""
    left, right = (math.log2(end(x for x, _ in points)) for end in (min, max))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)
        return round(_LEFT + across, 1), round((_HEIGHT - _BOTTOM) * (1 - y / top) + 8, 1)

    drawn = "".join(
        _line(_tokens(context), colour, [at(*point) for point in line], [y for _, y in line], 20 + 18 * place)
        for place, ((context, line), colour) in enumerate(zip(lines.items(), _COLOURS * len(lines), strict=False))
    )
    ticks = "".join(
        f'<text x="{at(x, 0)[0]}" y="{_HEIGHT - 10}" text-anchor="middle">{x:g}</text>' for x in sorted({*dict(points)})
    )
    levels = "".join(
        f'<text x="{_LEFT - 6}" y="{at(2**left, y)[1] + 4}" text-anchor="end">{_number(y)}</text>'
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at(2**left, y)[1]}" y2="{at(2**left, y)[1]}" '
        'stroke="currentColor" stroke-opacity=".15"/>'
        for y in (0.0, top / 2, top)
    )
    title = f"decode of all requests, tokens/s, by requests at once, {name}"
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg width="{_WIDTH}" height="{_HEIGHT + 8}" role="img" '
        f'aria-label="{escape(title)}; the table above has the figures">{levels}{ticks}{drawn}</svg></figure>\n'
    )


def _line(name: str, colour: str, places: Sequence[tuple[float, float]], values: Sequence[float], legend: int) -> str:
    path = " ".join(f"{x},{y}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{name}: {_number(value)}</title></circle>'
        for (x, y), value in zip(places, values, strict=True)
    )
    x = _WIDTH - _RIGHT + 16
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'
        f'<rect x="{x}" y="{legend - 9}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{x + 16}" y="{legend}">{name}</text>'
    )


def _problems(cells: Sequence[Cell]) -> str:
    lines = []
    for cell in cells:
        place = f"{cell.context} x {cell.concurrency}, drafting {cell.speculation}"
        if cell.because is not None:
            lines.append(f"<li>{place}: not measured, because {escape(cell.because)}</li>\n")
        if cell.calls.wrong:
            wrong = f"{cell.calls.wrong} of {cell.calls.checked} answers with calls are wrong: {cell.calls.because}"
            lines.append(f'<li class="bad">{place}: {escape(wrong)}</li>\n')
        if cell.late_answers is not None:
            lines.append(f"<li>{place}: {cell.late_answers}</li>\n")
    return f"<ul>{''.join(lines)}</ul>\n" if lines else ""


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
