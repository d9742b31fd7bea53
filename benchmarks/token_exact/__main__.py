"""`python -m benchmarks.token_exact`: random agent conversations with every format, by every API.

For each pair of consecutive turns: does the second prompt begin with the first prompt and its output, id for id? With
the answers' records, and without them. Then what a record costs. Exits with 1 if a format of our own has a pair after a
whole answer that is not exact although the format leaves nothing out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks import tables
from benchmarks.tables import Sheet
from dovetail.gateway.records.answers import recorded_answers, spelling
from dovetail.gateway.records.record import Sealer, model_digest
from tests.gateway import multi_turn
from tests.gateway.dialogues import APIS
from tests.gateway.multi_turn import SETTINGS, Conversation, Model, Pair

SHARED = Path(__file__).parents[3] / "shared" / "data"
#: Tokens of an answer, up to which its record counts in a row of the table of sizes.
LENGTHS = (32, 128, 512, 1 << 20)
_SECONDS_TO_US_PER_1000 = 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000, metavar="N")
    parser.add_argument("--turns", type=int, default=6, metavar="N")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    shared = SHARED if SHARED.is_dir() else None
    natives = multi_turn.natives(shared)
    templates = multi_turn.templates(shared) if shared else []
    pairs = list(_pairs(natives, templates, arguments.conversations, arguments.turns))
    why = Counter(pair.why for pair in pairs if not pair.exact)
    conversations = [Conversation(model, seed) for model in natives for seed in range(4)]
    for conversation in conversations:
        for _ in conversation.pairs(arguments.turns):
            pass
    sheets = [
        _shares("format", lambda pair: "published templates" if "/" in pair.model else pair.model, pairs),
        _shares("between the turns", lambda pair: "results of calls" if pair.same_loop else "a user's message", pairs),
        ("Pairs that are not exact", ["why", "pairs"], [[reason, str(count)] for reason, count in why.most_common()]),
        _sizes(conversations),
    ]
    notes = [f"{arguments.conversations} conversations, {len(pairs)} pairs of turns", _times(conversations)]
    tables.show(sheets, notes, as_markdown=arguments.markdown, words=("format", "between the turns", "why", "tokens"))
    failures = [pair for pair in pairs if pair.why == "other" and "/" not in pair.model and not pair.cut]
    for pair in failures:
        print(pair)
    return 1 if failures else 0


def _pairs(natives: list[Model], templates: list[Model], conversations: int, turns: int) -> Iterator[Pair]:
    """Three of five conversations with formats of their own, by all APIs, and the others with published templates."""
    apis = list(APIS)
    for number in range(conversations):
        round, place = divmod(number, 5)
        if place < 3 or not templates:
            native = 3 * round + place
            model, api = natives[native % len(natives)], apis[native // len(natives) % len(apis)]
        else:
            model, api = templates[(2 * round + place) % len(templates)], "chat"
        yield from (pair for pair in multi_turn.pairs(model, 1, turns, api, first=number) if pair.recorded)


def _shares(title: str, group: Callable[[Pair], str], pairs: Iterable[Pair]) -> Sheet:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(group(pair), []).append(pair)
        groups.setdefault("zzz", []).append(pair)
    rows = []
    for name, members in sorted(groups.items()):
        counts = (
            sum(pair.exact for pair in members),
            sum(pair.without for pair in members),
            sum(pair.why.startswith("template") for pair in members),
            sum(pair.why == "cut inside a call" for pair in members),
            sum(pair.why == "other" for pair in members),
        )
        shares = (f"{100 * count / len(members):.1f} %" for count in counts)
        rows.append([name.replace("zzz", "all"), str(len(members)), *shares])
    columns = [title, "pairs", "exact", "without records", "template", "cut in a call", "other"]
    return f"Prompts that begin with prompt and output of the turn before, by {title}", columns, rows


def _sizes(conversations: Iterable[Conversation]) -> Sheet:
    sealed = [(tokens, len(text)) for each in conversations for tokens, text, _ in each.records if text]
    rows, begin = [], 0
    for end in LENGTHS:
        part = [(tokens, size) for tokens, size in sealed if begin < tokens <= end]
        name = f"{begin + 1} to {end}" if end < LENGTHS[-1] else f"over {begin}"
        if part:
            rows.append([name, str(len(part)), f"{sum(s for _, s in part) / sum(t for t, _ in part):.2f}"])
        begin = end
    return "Size of a record", ["tokens", "answers", "characters per token"], rows


def _times(conversations: Iterable[Conversation]) -> str:
    tokens, making, checking = 0, 0.0, 0.0
    sealers: dict[str, Sealer] = {}
    for conversation in conversations:
        model = conversation.model
        if model.name not in sealers:
            digest = model_digest(model.format.name, model.tokenizer)
            sealers[model.name] = Sealer(SETTINGS.record_key, digest, model.tokenizer.vocab_size)
        sealer = sealers[model.name]
        turn = conversation.dialogue.exchange(conversation.dialogue.history).turn_request
        tokens += sum(count for count, _, _ in conversation.records)
        making += sum(seconds for _, _, seconds in conversation.records)
        started = time.process_time()
        for record in recorded_answers(turn.messages, turn.tools, sealer)[0].values():
            spelling(record, model.tokenizer)
        checking += time.process_time() - started
    make, check = (_SECONDS_TO_US_PER_1000 * seconds / tokens for seconds in (making, checking))
    return f"per 1,000 tokens: {make:.0f} µs to make records and {check:.0f} µs to check them, in short answers"


if __name__ == "__main__":
    sys.exit(main())
