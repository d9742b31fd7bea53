"""Published tables come out of their own figures, by our definitions. Which do not, and why: docs/verify/calls.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.client.statistics import Interval
from dovetail.verify.outcome import Outcome
from dovetail.verify.suites import Calls
from dovetail.verify.suites.recorded import Run

#: Moonshot's tables of 2025-11-15 (K2-Thinking, K2-0905) and 2025-10-23 (K2-0905): answers with finish_reason
#: tool_calls, those with valid calls, schema accuracy in percent.
SCHEMA_ACCURACY = """
Moonshot 1958 1958 100.00; Moonshot-Turbo 1984 1984 100.00; Fireworks 1703 1703 100.00; InfiniAI 1827 1825 99.89;
SiliconFlow 2119 2097 98.96; GMICloud 1850 1775 95.95; AtlasCloud 1878 1798 95.74; SGLang 1874 1790 95.52;
vLLM 2128 1856 87.22; Parasail 2108 1837 87.14; DeepInfra 2071 1800 86.91; GoogleVertex 1945 1668 85.76;
Together 1893 1602 84.63; NovitaAI 1778 1715 96.46; Chutes 3657 3037 83.05; Fireworks-OpenRouter 1494 1494 100.00;
Moonshot-0905 1274 1274 100.00; Turbo-0905 1398 1398 100.00; DeepInfra-0905 1365 1365 100.00;
Fireworks-0905 1453 1453 100.00; Infinigence-0905 1257 1257 100.00; NovitaAI-0905 1299 1299 100.00;
SiliconFlow-0905 1305 1302 99.77; Chutes-0905 1271 1229 96.70; vLLM-0905 1325 1007 76.00; SGLang-0905 1269 928 73.13;
Volc-0905 1330 969 72.86; Baseten-0905 1243 901 72.49; AtlasCloud-0905 1277 925 72.44; Together-0905 1266 911 71.96;
Groq-0905 1042 1042 100.00; Nebius-0905 644 544 84.47;
Turbo-October 1296 1296 100.00; DeepInfra-October 1405 1405 100.00; Infinigence-October 1249 1249 100.00;
NovitaAI-October 1263 1263 100.00; SiliconFlow-October 1280 1276 99.69; Chutes-October 1225 1187 96.90;
PPIO-October 1294 945 73.03; AtlasCloud-October 1272 925 72.72; Baseten-October 1363 982 72.05;
Together-October 1260 900 71.43; Volc-October 1344 962 71.58; Fireworks-October 1443 1443 100.00;
Groq-October 1016 1016 100.00; Nebius-October 636 549 86.32
"""
#: The table of 2025-09-22 (K2-0905, 2,000 requests): stop, tool_calls, others, invalid, valid, similarity in percent.
OFFICIAL = (1437, 522, 41, 522)  # its own row, without the 0 invalid ones
SIMILARITY = """
Turbo 1441 513 46 0 513 99.29; NovitaAI 1483 514 3 10 504 96.82; SiliconFlow 1408 553 39 46 507 96.78;
Volc 1423 516 61 40 476 96.70; DeepInfra 1455 545 0 42 503 96.59; Fireworks 1483 511 6 39 472 95.68;
Infinigence 1484 467 49 0 467 95.44; Baseten 1777 217 6 9 208 72.23; Together 1866 134 0 8 126 64.89;
AtlasCloud 1906 94 0 4 90 61.55
"""
#: F1 in percent, with the answers of tool_calls of the official endpoint and of the vendor, over 4,000 requests.
F1 = """
NovitaAI 1958 1778 72.22; Chutes 1958 3657 68.10; Fireworks-OpenRouter 1958 1494 67.38; Groq-0905 1274 1042 69.52;
Groq-October 1274 1016 68.21; Nebius-October 1274 636 48.59
"""
#: No number of common triggers gives these, so they are of other answers than the counts beside them.
F1_OF_OTHER_COUNTS = "Nebius-0905 1274 644 50.60; Fireworks-October 1274 1443 79.68"
REQUESTS = 4000


def rows(table: str) -> list[str]:
    return [" ".join(row.split()) for row in table.split(";")]


def counted(stop: int, triggered: int, others: int, valid: int) -> list[Run]:
    """Answers with these counts."""
    calls = [Run("tool_calls", i < valid) for i in range(triggered)]
    return [*calls, *[Run("stop")] * stop, *[Run("length")] * others]


def outcomes(answers: list[Run], reference: list[Run] | None = None) -> Iterator[Outcome]:
    for i, (finish, valid) in enumerate(answers):
        measures = {"finish": finish, "valid": valid} | ({} if reference is None else {"reference": [reference[i]]})
        yield Outcome(0, "calls", f"sample-{i}", 0, str(i), measures=measures)


def figures(answers: list[Run], reference: list[Run] | None = None) -> dict[str, float | None]:
    return {name: each.value for name, each in Calls([]).figures([*outcomes(answers, reference)]).items()}


@pytest.mark.parametrize("row", rows(SCHEMA_ACCURACY))
def test_schema_accuracy(row: str) -> None:
    _, triggered, valid, accuracy = row.rsplit(" ", 3)
    values = figures(counted(100, int(triggered), 0, int(valid)))
    assert f"{100 * values['schema_accuracy']:.2f}" == accuracy  # type: ignore[operator]
    assert values["finish_tool_calls"] == int(triggered) and values["successful_tool_call_count"] == int(valid)
    assert values["schema_validation_error_count"] == int(triggered) - int(valid)
    assert values["finish_stop"] == 100 and values["finish_others"] == 0


@pytest.fixture(scope="module")
def without_intervals() -> Iterator[None]:
    """A bootstrap of thousands of answers takes half a minute, and no table has intervals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.verify.suites.calls.bootstrap", lambda *_: Interval(0, 1))
        yield


@pytest.mark.parametrize("row", rows(SIMILARITY))
def test_similarity_and_its_counts(row: str, without_intervals: None) -> None:
    _, stop, triggered, others, invalid, valid, published = row.split()
    values = figures(counted(int(stop), int(triggered), int(others), int(valid)), counted(*OFFICIAL))
    assert values["schema_validation_error_count"] == int(invalid) and values["finish_others"] == int(others)
    # Fireworks' is 95.675 and was published as 95.68.
    assert 100 * values["similarity"] == pytest.approx(float(published), abs=0.0055)  # type: ignore[operator]


def triggers(official: int, vendor: int, both: int) -> tuple[list[Run], list[Run]]:
    """Answers of a vendor and of the official endpoint, of which so many trigger, and so many at the same requests."""
    call, text = Run("tool_calls", True), Run("stop")
    ours = [*[call] * vendor, *[text] * (REQUESTS - vendor)]
    theirs = [*[call] * both, *[text] * (vendor - both), *[call] * (official - both)]
    return ours, [*theirs, *[text] * (REQUESTS - len(theirs))]


def common(official: int, vendor: int, f1: str) -> list[int]:
    """The numbers of common triggers that give this F1, by its definition: 2 TP / (2 TP + FP + FN)."""
    return [both for both in range(min(official, vendor) + 1) if f"{200 * both / (official + vendor):.2f}" == f1]


@pytest.mark.parametrize("row", rows(F1))
def test_f1(row: str, without_intervals: None) -> None:
    """True positives were not published. But one whole number of them alone gives the F1, where one in five would."""
    _, official, vendor, f1 = row.split()
    (both,) = common(int(official), int(vendor), f1)
    ours, theirs = triggers(int(official), int(vendor), both)
    values = figures(ours, theirs)
    assert f"{100 * values['tool_call_f1']:.2f}" == f1  # type: ignore[operator]
    assert values["tool_call_precision"] == both / int(vendor) and values["tool_call_recall"] == both / int(official)


@pytest.mark.parametrize("row", rows(F1_OF_OTHER_COUNTS))
def test_two_published_f1_are_not_of_the_counts_beside_them(row: str) -> None:
    _, official, vendor, f1 = row.split()
    assert common(int(official), int(vendor), f1) == []
