"""Derives the format of a chat template's calls by rendering chosen messages and comparing the prompts.

1. `SampleAnswers` renders answers with one call, two, content, several parameters and none.
2. `call_layouts` finds in them what surrounds a section, a call, its name and its arguments: a declaration.
3. The declaration is a `DeclaredFormat`, which gives a reader, a writer and a grammar.
4. `proof` compares these with the template on random messages. A declaration that fails is not used.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from dovetail.formats.answers.call_envelope import ID
from dovetail.formats.base import Format
from dovetail.formats.declared.declared import DeclaredFormat
from dovetail.formats.derived import proof
from dovetail.formats.derived.layouts import Layout, NoLayoutError, layout
from dovetail.formats.derived.probes import Block, Probe
from dovetail.formats.derived.sample_answers import (
    Render,
    SampleAnswers,
    Shows,
    in_history,
    writes_last_answer_otherwise,
)

#: The name of a family that was derived from a template.
NAME = "derived"
_SILENT = "the chat template shows no calls: a history with a call renders like one without"


#: What a template may get as the arguments of a call.
_ENCODINGS: tuple[Callable[[Mapping[str, Any]], Any], ...] = (json.dumps, dict)


class Derivation(NamedTuple):
    """What differencing derived from a template.

    `shows`: what the template shows of calls; None if it shows none.
    `layout`: the layout of the calls; None if no declaration expresses it.
    `family`: the family that was declared from it.
    `reason`: why the family is not used; "" if it is.
    """

    shows: Shows | None = None
    layout: Layout | None = None
    family: type[DeclaredFormat] | None = None
    reason: str = ""


T = TypeVar("T", bound=Format)


class Derived(NamedTuple, Generic[T]):
    """The format of a template whose calls were derived, if they were, and how."""

    format: T | None
    derivation: Derivation

    @property
    def shows_ids(self) -> bool:
        """Whether calls have ids, which a template may show although the server makes them, and not the model."""
        return self.derivation.layout is not None and any(ID in answer for _, answer in self.derivation.layout.answers)


def derive(
    render: Render,
    later: Render,
    probe: Probe,
    controls: Iterable[str],
    ends: Sequence[str],
    make: Callable[[Format, str], T],
) -> Derived[T]:
    """The format of the calls that a template writes.

    `later`: renders at another date.
    `ends`: the control tokens that end a turn.
    `make`: makes the format of the whole template from a family for its calls and the text before a call's name. The
    proof tries that format.
    """
    block = probe.block()
    derivations, refusal = [], ""
    for (view, later_view), encode in _attempts(render, later):
        samples = SampleAnswers(view, controls, encode, _without_block(block), ends)
        shown = samples.shows()
        if shown is None:
            refusal = refusal or (samples.refusal() if view is render else "")
            continue
        calls_layout, family = None, None
        try:
            calls_layout = layout(samples, both=shown.both)
            family = _declared(calls_layout, samples, block, controls, ends)
            made = make(family(), calls_layout.opening)
            failure = _failure(made, view, shown) or _unsteadiness(samples, later_view, calls_layout, both=shown.both)
            if not failure:
                return Derived(made, Derivation(shown, calls_layout, family))
        except NoLayoutError as error:
            failure = str(error)
        except (ValueError, TypeError) as error:
            failure = f"no declaration expresses the layout of its calls: {error}"
        derivations.append(Derivation(shown, calls_layout, family, failure))
    # The reason of the attempt that went furthest; of two, the first, whose arguments are text.
    return Derived(
        None,
        max(derivations, key=lambda tried: tried.layout is not None, default=Derivation(reason=refusal or _SILENT)),
    )


def _attempts(render: Render, later: Render) -> Iterator[tuple[tuple[Render, Render], Callable[..., Any]]]:
    """Pairs of renderers and how they get arguments: for the last answer, and then for one in a history."""
    yield from itertools.product([(render, later)], _ENCODINGS)
    if writes_last_answer_otherwise(render):
        yield from itertools.product([(in_history(render), in_history(later))], _ENCODINGS)


def shows(render: Render, probe: Probe, controls: Iterable[str], ends: Sequence[str]) -> Shows | None:
    """What the template shows of calls; None if it shows none."""
    samples = (SampleAnswers(render, controls, encode, _without_block(probe.block()), ends) for encode in _ENCODINGS)
    return next((shown for sample in samples if (shown := sample.shows()) is not None), None)


def _failure(fmt: Format, render: Render, shows: Shows) -> str:
    try:
        return proof.verdict(fmt, render, *shows).failure
    except (ValueError, IndexError):  # from the search for markers, of which one may be empty
        return "one of its markers begins like another or is empty, so that they cannot be told apart"


def _unsteadiness(samples: SampleAnswers, later: Render, calls_layout: Layout, *, both: bool) -> str:
    """Why the template may write the same calls in two ways; "" if it does not."""
    for render, reason in ((later, "depends on the date"), (samples.render, "differs from one time to the next")):
        try:
            same = layout(samples.rendered_by(render), both=both).answers == calls_layout.answers
        except (NoLayoutError, ValueError):
            same = False
        if not same:
            return f"what the chat template writes for a call {reason}"
    return ""


def _without_block(block: Block | None) -> Callable[[str], str]:
    """A function that removes an empty reasoning block from the beginning of an answer."""
    if block is None:
        return lambda text: text
    tags = re.escape(block.think), re.escape(block.think_end.strip())
    pattern = re.compile(rf"\s*(?:{tags[0]}\s*)?{tags[1]}\n{{0,{block.after_think_end}}}")

    def strip(text: str) -> str:
        match = pattern.match(text)
        return text[match.end() :] if match else text

    return strip


def _declared(
    calls_layout: Layout, samples: SampleAnswers, block: Block | None, controls: Iterable[str], ends: Sequence[str]
) -> type[DeclaredFormat]:
    attributes: dict[str, Any] = {
        "name": NAME,
        "calls": calls_layout.calls,
        "reasoning": "none",
        "answer": _answer(samples, controls),
        "end_of_turn": tuple(dict.fromkeys(filter(None, (samples.end, *ends)))),
    }
    if block is not None:
        opener, closer = block.think + "\n" * block.after_think, block.think_end + "\n" * block.after_think_end
        attributes |= {"reasoning": "written", "reasoning_block": f"{opener}{{reasoning}}{closer}"}
    templates = (
        "".join(map(str, vars(calls_layout.calls).values()))
        + attributes["answer"]
        + attributes.get("reasoning_block", "")
    )
    attributes["controls"] = tuple(literal for literal in controls if literal in templates)
    return type("Derived", (DeclaredFormat,), attributes)


def _answer(samples: SampleAnswers, controls: Iterable[str]) -> str:
    """The content with its own markers. Text that is neither a marker nor newlines is content."""
    before, after = samples.before_content, samples.after_content

    def marks(text: str) -> bool:
        return any(control in text for control in controls)

    before = before if marks(before) or not before.strip("\n") else ""
    return f"{before}{{content}}{after if marks(before) and marks(after) else ''}"
