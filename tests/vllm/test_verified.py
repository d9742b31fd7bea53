"""`dovetail verify` and a real vLLM: Dovetail on it passes; vLLM with one wrong step has that step blamed.

vLLM's own chat endpoint is sound here with Dovetail's parser and the template below. Then one option is changed: the
template, the parser, or how drafts are verified. Only short conversations are asked, for which that template is right.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dovetail
from dovetail.client.endpoint import Endpoint, Limits
from dovetail.client.transport import HttpTransport
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Header, Journal
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.runner import Plan, run
from dovetail.verify.suites import SUITES, Speculation
from tests.cli.test_serve import free_port
from tests.verify.harness import Only
from tests.vllm import asking
from tests.vllm.checkpoints import EAGLE3, TARGET
from tests.vllm.processes import Process, up
from tests.vllm.processes import dovetail as served

#: What Kimi K2.5 is trained on, for a user's text and tools whose parameters are of one type each.
TEMPLATE = """\
{%- if tools -%}<|im_system|>tool_declare<|im_middle|># Tools

## functions
namespace functions {
{% for tool in tools %}
// {{ tool.function.description }}
type {{ tool.function.name }} = (_: {
{% for name, schema in tool.function.parameters.properties.items() %}
  {{ name }}: {{ schema.type }}{{ '' if loop.last else ',' }}
{% endfor %}
}) => any;
{% endfor %}
}
<|im_end|>{%- endif -%}
{%- for m in messages -%}
<|im_{{ m.role if m.role in ('user', 'assistant') else 'system' }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>
{%- endfor -%}
<|im_assistant|>assistant<|im_middle|>{{ '<think></think>' if thinking is defined and not thinking else '<think>' }}"""
WITHOUT_TURN = TEMPLATE[: TEMPLATE.rindex("<|im_assistant|>")]
CASES = ("call/auto", "call/two", "stream-equals-whole/call", "stream-equals-whole/text", "finish/")
GREEDY = ("greedy/call", "greedy/text")
DRAFTS = {"method": "eagle3", "model": str(EAGLE3), "num_speculative_tokens": 3}
#: A plugin of vLLM that accepts every draft, whatever the target would have written.
PLUGIN = """\
import inspect

from vllm.v1.sample import rejection_sampler


def register():
    verify = rejection_sampler.rejection_sample
    signature = inspect.signature(verify)

    def unseen(*positional, **named):
        bound = signature.bind(*positional, **named)
        logits, drafts = bound.arguments["target_logits"].clone(), bound.arguments["draft_token_ids"].long()
        logits[range(len(drafts)), drafts] = 1e9
        bound.arguments["target_logits"] = logits
        return verify(*bound.args, **bound.kwargs)

    rejection_sampler.rejection_sample = unseen
"""


def vllm(program: Path, template: Path, *words: str, parser: str = "dovetail_kimi_k25", **variables: str) -> Process:
    """vLLM's own chat endpoint, not up yet."""
    port = free_port()
    options = ["--port", str(port), "--served-model-name", asking.MODEL, "--max-model-len", "2048"]
    options += ["--dtype", "float32", "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", parser]
    if parser != "hermes":
        options += ["--reasoning-parser", parser]
    command = [str(program), "serve", str(TARGET), *options, "--chat-template", str(template), *words]
    return Process(command, port, "Application startup complete", **variables)


def verified(url: str, *cases: str, undrafted: str | None = None) -> list[Outcome]:
    """The outcomes of these cases, or of all. With `undrafted`, answers are compared with those of that endpoint."""

    def endpoint(of: str) -> Endpoint:
        return Endpoint(HttpTransport(of, None, 300), of, limits=Limits(max_tokens=200))

    async def outcomes() -> list[Outcome]:
        tested, plain = endpoint(url), endpoint(undrafted or url)
        companion = {} if undrafted is None else {tested: Companion(plain, "endpoint without drafter")}
        suites = [Speculation(companion) if suite is Speculation else suite() for suite in SUITES.values()]
        plan = Plan([Only(suite, *cases or ("",)) for suite in suites], concurrency=2, undrafted=companion)
        language = Language(dovetail.format(TARGET), dovetail.tokenizer(TARGET))
        journal = Journal(None, Header((), (), ""))
        try:
            return await run([tested], plan, language, journal=journal, bundles=Bundles(None))
        finally:
            await tested.close()
            await plain.close()

    return asyncio.run(outcomes())


def blamed(outcomes: list[Outcome]) -> set[str]:
    assert not any(outcome.untested.blocking for outcome in outcomes if outcome.untested), outcomes
    return {failure.step for outcome in outcomes for failure in outcome.failures}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    return file


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The embedded engine without a drafter, with the same weights."""
    options = ("--draft-tokens", "0", "--context", "2048", "--dtype", "float32", "--served-model-name", asking.MODEL)
    with up(served(*options)) as server:
        yield server.url


def test_dovetail_on_vllm_passes_every_suite(program: Path, plain: str, tmp_path: Path) -> None:
    words = ("--engine", "vllm", "--vllm", program, "--engine-log", tmp_path / "log", "--engine-args=--enforce-eager")
    options = ("--context", "2048", "--dtype", "float32", "--max-batch", "2", "--served-model-name", asking.MODEL)
    with up(served(*words, *options)) as server:
        outcomes = verified(server.url, undrafted=plain)
    assert blamed(outcomes) == set()
    assert {outcome.suite for outcome in outcomes if outcome.passed} == set(SUITES) - {"long"}


def test_vllm_with_our_parser_and_the_models_template_passes(program: Path, template: Path, plain: str) -> None:
    with up(vllm(program, template, "--speculative-config", json.dumps(DRAFTS))) as server:
        outcomes = verified(server.url, *CASES, *GREEDY, undrafted=plain)
    assert blamed(outcomes) == set() and all(outcome.passed for outcome in outcomes)
    counted = Speculation().figures([outcome for outcome in outcomes if outcome.suite == "speculation"])
    assert set(counted) == {*(f"accepted at position {i}" for i in (1, 2, 3)), "tokens per step"}
    positions = [counted[f"accepted at position {i}"].value or 0 for i in (1, 2, 3)]
    assert 1 > positions[0] >= positions[1] >= positions[2] > 0
    assert counted["tokens per step"].value == pytest.approx(1 + sum(positions))


def test_vllms_own_parser_takes_a_call_that_is_cut_off_for_a_whole_one(program: Path, template: Path) -> None:
    """It loses no call, whatever a step drafts."""
    with up(vllm(program, template, "--speculative-config", json.dumps(DRAFTS), parser="kimi_k2")) as server:
        outcomes = verified(server.url, *CASES)
    assert blamed(outcomes) == {"reader"}
    (failed,) = [outcome for outcome in outcomes if not outcome.passed]
    assert failed.case == "finish/length-in-a-call"
    assert "finish_reason is 'tool_calls' and not length" in failed.failures[0].evidence


def test_a_template_without_a_turn_for_the_answer_is_a_fault_of_the_prompt(program: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text(WITHOUT_TURN)
    with up(vllm(program, tmp_path / "template")) as server:
        assert blamed(verified(server.url, *CASES)) == {"prompt"}


def test_another_familys_parser_is_a_fault_of_the_reader(program: Path, template: Path) -> None:
    with up(vllm(program, template, parser="hermes")) as server:
        assert blamed(verified(server.url, *CASES)) == {"reader"}


def plugin(folder: Path) -> Path:
    """A folder for PYTHONPATH, from which vLLM loads the plugin."""
    about = folder / "accepts_unseen-0.1.dist-info"
    about.mkdir()
    (folder / "accepts_unseen.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: accepts-unseen\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\naccepts_unseen = accepts_unseen:register\n")
    return folder


def test_a_wrong_verification_is_a_fault_of_drafts(program: Path, template: Path, plain: str, tmp_path: Path) -> None:
    drafting = ("--speculative-config", json.dumps(DRAFTS))
    with up(vllm(program, template, *drafting, PYTHONPATH=str(plugin(tmp_path)))) as server:
        assert blamed(verified(server.url, *GREEDY, undrafted=plain)) == {"draft"}
