"""Which step failed: prompt, draft, reader, schema or model, with the evidence for it.

The order of the questions is the order of certainty (docs/decisions/0033-blame.md):

1. The finding itself shows the step.
2. The prompt differs from our own.
3. Our reader makes another message of the answer's tokens.
4. The case passes when drafting is off, and fails again when it is on.
5. What is left: the schema where the request's constraint forbids what was seen, else the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dovetail.client.endpoint import Exchange, Target
from dovetail.client.not_tested import NotTested, encodable
from dovetail.verify.language import Language
from dovetail.verify.outcome import Failure, Step
from dovetail.verify.suites.base import Finding

#: Runs the case once more, and returns its findings.
Rerun = Callable[[], Awaitable[Sequence[Finding]]]


async def blamed(
    suite: str,
    case: str,
    findings: Sequence[Finding],
    target: Target,
    language: Language,
    rerun: Rerun,
    undrafted: Rerun | None,
) -> tuple[Failure, ...]:
    """A failure for each step that the findings are blamed on, with all that was found for it.

    `rerun`, `undrafted`: with and without drafts; None if answers without drafts cannot be had.
    """
    search = _Search(target, language, rerun, undrafted)
    evidence: dict[Step, list[str]] = {}
    for finding in findings:
        step, why = await search.step(finding)
        evidence.setdefault(step, []).extend(line for line in (finding.what, why) if line)
    if len(evidence) > 1 and "model" in evidence:
        del evidence["model"]  # what is wrong before or after the model explains what it wrote
    return tuple(
        Failure(suite, case, step, encodable("\n".join(dict.fromkeys(seen)))) for step, seen in evidence.items()
    )


class _Search:
    def __init__(self, target: Target, language: Language, rerun: Rerun, undrafted: Rerun | None) -> None:
        self._target, self._language, self._rerun, self._undrafted = target, language, rerun, undrafted
        self._without_drafts: str | None = None

    async def step(self, finding: Finding) -> tuple[Step, str]:
        if finding.decided:
            return finding.suspect, ""
        compared = await self._language.compared(self._target.endpoint, finding.exchange)
        if compared.step is not None:
            return compared.step, compared.why
        if drafts := await self._drafting():
            return "draft", drafts
        if not compared.read:
            return finding.suspect, compared.why
        return finding.as_read or finding.suspect, "the prompt is ours; our reader reads its tokens as it does"

    async def _drafting(self) -> str:
        """Why drafting is to blame; "" if it is not, or if that cannot be known. Asked once for a case."""
        if self._without_drafts is None:
            self._without_drafts = await self._ask_without_drafts()
        return self._without_drafts

    async def _ask_without_drafts(self) -> str:
        if self._undrafted is None or not any(map(_may_be_drafted, self._target.exchanges)):
            return ""
        try:
            if await self._undrafted() or not await self._rerun():
                return ""
        except NotTested:
            return ""
        return "with drafting off it is gone, and with drafting on it is there again"


def _may_be_drafted(exchange: Exchange) -> bool:
    """Whether tokens were drafted for an answer, or the endpoint does not count them."""
    counts = (exchange.answer.usage or {}).get("speculation")
    return counts is None or bool(counts.get("drafted"))
