"""`python -m tests.verify.confusion`: the confusion matrices of docs/verify.md, from runs of every suite."""

from __future__ import annotations

from collections import Counter

from dovetail.verify.language import Language
from dovetail.verify.outcome import STEPS
from dovetail.verify.suites import SUITES
from tests.verify.broken import BROKEN, Broken
from tests.verify.harness import AppTransport, endpoint, gateway, kimi, verified

NOTHING = "nothing"
#: The broken step (or that none is), and the steps that were blamed.
Matrix = dict[str, list[frozenset[str]]]


def blamed(transport: AppTransport, language: Language) -> Counter[str]:
    """How many failures of all suites are blamed on each step."""
    outcomes = verified(endpoint(transport), suites=[suite() for suite in SUITES.values()], language=language)
    return Counter(failure.step for outcome in outcomes for failure in outcome.failures)


def matrix(language: Language, endpoints: tuple[Broken, ...] = BROKEN) -> Matrix:
    rows: Matrix = {step: [] for step in STEPS}
    for broken in endpoints:
        rows[broken.step].append(frozenset(blamed(broken.make(), language)))
    return {**rows, NOTHING: [frozenset(blamed(AppTransport(gateway()), language))]}


def table(of: Matrix) -> str:
    """The matrix as a table. An endpoint counts at each step that is blamed."""
    lines = ["| broken step | endpoints | blamed |", "|---|---|---|"]
    for step, endpoints in of.items():
        counts = {other: sum(other in (blame or {NOTHING}) for blame in endpoints) for other in (*STEPS, NOTHING)}
        blamed = ", ".join(f"{other} {count}" for other, count in counts.items() if count)
        lines.append(f"| {step} | {len(endpoints)} | {blamed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for language in (kimi(), Language()):
        print(table(matrix(language)), end="\n\n")
