"""The corpus: reproducible, right by its own schemas, and encoded as the engine will see it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import torch
from torch.nn.functional import cross_entropy

import dovetail
from dovetail.tokens import Tokenizer
from training.corpus import sample
from training.data import FORMAT, encode
from training.induction import lay_induction
from training.model import Target, TargetShape

DEMO = Path(dovetail.__file__).parent / "data" / "demo"


def test_a_seed_is_a_conversation() -> None:
    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


def test_calls_satisfy_their_own_tools_and_say_what_the_user_said() -> None:
    for seed in range(200):
        s = sample(seed)
        tools = {t["function"]["name"]: t["function"]["parameters"] for t in s.tools}
        for index in range(s.turn, len(s.messages)):
            if s.messages[index]["role"] != "assistant":
                continue
            for call in s.answer_at(index).calls:
                arguments = json.loads(call.arguments)
                jsonschema.validate(arguments, tools[call.name])
                request = s.messages[index - 1]["content"]
                for value in arguments.values():
                    assert isinstance(value, bool | float | list) or str(value) in request


def test_history_ids_need_no_repair() -> None:
    for seed in range(100):
        s = sample(seed)
        assert FORMAT.repair(s.messages, s.tools)[1] == []


def test_every_answer_has_weight_one_and_reads_back(small_tokenizer: Tokenizer) -> None:
    for seed in range(40):
        s = sample(seed)
        ids, weights = encode(s, small_tokenizer)
        answers = [i for i in range(s.turn, len(s.messages)) if s.messages[i]["role"] == "assistant"]
        reader = FORMAT.reader(s.tools, thinking=s.thinking, tokenizer=small_tokenizer)
        first = ids[len(FORMAT.render(s.messages[: s.turn], s.tools, thinking=s.thinking).ids(small_tokenizer)) :]
        length = next(n for n, token in enumerate(first) if token == small_tokenizer.control["<|im_end|>"]) + 1
        assert dovetail.fold([*reader.feed("", first[:length]), *reader.finish()]) == s.answer_at(answers[0])
        written = sum(len(FORMAT.write(s.answer_at(i), thinking=s.thinking).ids(small_tokenizer)) for i in answers)
        assert sum(w == 1.0 for w in weights) == written


def test_the_laid_circuit_copies_before_any_training() -> None:
    """Random segments, then the same in another order: the rest of a segment follows from its first token."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = torch.randint(TargetShape().vocab_size, (4, 16, 4))
    order = torch.rand(4, 16).argsort(-1)
    ids = torch.cat((first, first.gather(1, order[..., None].expand_as(first))), 1).flatten(1)
    predictable = torch.zeros(4, 2, 16, 4, dtype=torch.bool)
    predictable[:, 1, :, 1:] = True

    def loss(model: Target) -> float:
        with torch.inference_mode():
            hidden, _ = model(ids[:, :-1])
            rows = predictable.flatten(1)[:, 1:]
            return cross_entropy(model.lm_head(hidden[rows]), ids[:, 1:][rows]).item()

    model = Target(TargetShape())
    before = loss(model)
    lay_induction(model, dovetail.tokenizer(DEMO / "target"))
    assert before > 7
    assert loss(model) < 2
