"""Suite `protocol` passes on a sound endpoint, with and without what it can know about it."""

from __future__ import annotations

import pytest

from dovetail.verify.language import Language
from dovetail.verify.suites.protocol import Protocol
from tests.verify.harness import AppTransport, endpoint, gateway, kimi, verified

LANGUAGES = [
    pytest.param(kimi(), id="tokens"),
    pytest.param(kimi(tokens=False), id="format", marks=pytest.mark.slow),
    pytest.param(Language(), id="nothing"),
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sound_endpoint_passes_every_case(language: Language) -> None:
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[Protocol()], language=language)
    assert [(outcome.case, outcome.failures, outcome.untested) for outcome in outcomes if not outcome.passed] == []
    assert len(outcomes) == len(Protocol().cases())
