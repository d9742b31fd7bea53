"""The suites beside `protocol`: what a sound endpoint shows, and what is not tested."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.endpoint import Endpoint
from dovetail.client.transport import Reply
from dovetail.completion import Completion
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.report import results
from dovetail.verify.suites import Calls, Injection, Long, Protocol, Schema, Speculation, Suite
from dovetail.verify.suites.calls import Confusion, Reference
from dovetail.verify.suites.recorded import Run, read_results, read_samples
from tests.verify.broken import NeverCalls, NoConstraint, WrongVerification, text_becomes_control
from tests.verify.harness import AppTransport, Change, Only, endpoint, gateway, kimi, verified
from tests.verify.model import Model, wished


def figures(outcomes: list[Outcome], suite: Suite) -> dict[str, Any]:
    return {name: figure.value for name, figure in results([suite], outcomes).suites[suite.name].figures.items()}


def reasons(outcomes: list[Outcome]) -> set[str]:
    return {outcome.untested.because if outcome.untested else "" for outcome in outcomes}


@pytest.mark.parametrize("suite", [Schema, Injection, Calls])
def test_a_sound_endpoint_passes(suite: type[Suite]) -> None:
    few = Only(suite(), "kind/", "user", "enum", "result", "sample-2", "sample-3")
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[few])
    assert outcomes and [outcome for outcome in outcomes if not outcome.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("suite", [Schema, Injection, Calls, Speculation])
@pytest.mark.parametrize("language", [kimi(), kimi(tokens=False), Language()], ids=["tokens", "format", "nothing"])
def test_a_sound_endpoint_passes_every_case(suite: type[Suite], language: Language) -> None:
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite()], language=language)
    assert [outcome for outcome in outcomes if not outcome.passed] == []


# -- schema ----------------------------------------------------------------------------------------------------------


def test_whether_schemas_are_enforced_is_a_figure() -> None:
    suite = Only(Schema(), "kind/set_switch", "forbidden/set_switch", "forbidden/nothing")
    name = "calls that validate where the prompt asks for others"
    assert figures(verified(endpoint(AppTransport(gateway())), suites=[suite]), suite)[name] == 1
    outcomes = verified(endpoint(AppTransport(gateway(NoConstraint()))), suites=[suite])
    assert figures(outcomes, suite)[name] == 0
    assert "do not validate: schema_mismatch" in outcomes[0].failures[0].evidence


def refusing(*fields: str) -> Change:
    """A change of replies: a request with one of these fields is refused."""

    def change(path: str, body: Any, reply: Reply) -> Reply:
        asked = json.loads(body or b"{}")
        refused = next((name for name in fields if name in asked), None)
        error = json.dumps({"error": {"message": f"no {refused} here"}}).encode()
        return reply if refused is None else Reply(400, {}, error)

    return change


@pytest.mark.parametrize(
    ("field", "because"),
    [
        ("tools", "it refuses a request with tools: 400: no tools here"),
        ("tool_choice", "it refuses a request that names a tool: 400: no tool_choice here"),
    ],
)
def test_where_calls_are_refused_schemas_are_those_of_a_response_format(field: str, because: str) -> None:
    suite = Only(Schema(), "kind/set_switch", "kind/nested", "forbidden/set_switch")
    transport = AppTransport(gateway(), refusing(field))
    outcomes = verified(endpoint(transport), suites=[suite])
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    shown = figures(outcomes, suite)
    assert shown["finished answers that validate"] == 1 and "finished calls that validate" not in shown
    assert shown["answers that validate where the prompt asks for others"] == 1
    asked = [json.loads(body) for path, body in transport.requests if body and b"response_format" in body]
    assert len(asked) == 6 and not any("tools" in each or "tool_choice" in each for each in asked)
    # Requests are sent side by side, in any order.
    assert any('"on": {"type": "boolean"}' in each["messages"][-1]["content"] for each in asked)
    (untested,) = results([Schema()], outcomes).not_tested
    assert untested.because == f"{because} (a response_format was tested in place of calls)"
    free = verified(endpoint(AppTransport(gateway(NoConstraint()), refusing(field))), suites=[suite])
    assert "the content does not validate" in free[-1].failures[0].evidence


def test_an_endpoint_without_calls_and_formats_has_no_result_for_schemas() -> None:
    transport = AppTransport(gateway(), refusing("response_format", "tools"))
    (outcome,) = verified(endpoint(transport), suites=[Only(Schema(), "kind/set_switch")])
    assert outcome.untested is not None and not outcome.untested.blocking
    assert outcome.untested.because == (
        "it refuses a request with tools: 400: no tools here; and with a response_format it refused a request: "
        "400: no response_format here"
    )


class Chatty(Model):
    def wish(self, prompt: str, completion: Completion) -> Message:
        return Message("word " * 100)

    def constraint(self, completion: Completion) -> None:
        return None


def test_answers_that_run_to_the_limit_are_no_failures_of_the_schema() -> None:
    suite = Only(Schema(), "kind/set_switch")
    (outcome,) = verified(endpoint(AppTransport(gateway(Chatty())), limits=None), suites=[suite])
    assert "is not called" in outcome.failures[0].evidence
    short = [{**case.request, "max_tokens": 5} for case in suite.cases()]
    cut = Schema(tools=short[0]["tools"])
    cut._cases = [type(case)(case.name, request={**case.request, "max_tokens": 5}) for case in cut._cases]
    outcomes = verified(endpoint(AppTransport(gateway(Chatty()))), suites=[cut])
    assert figures(outcomes, cut)["answers that ran to the limit"] == 1 and outcomes[0].passed


def test_the_users_own_tools_and_schemas_are_cases() -> None:
    tool = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
    unusable = {"type": "object", "properties": {"a": {"type": "no such type"}}}
    suite = Schema([tool], {"Test/1": {"type": "object", "properties": {"a": {"type": "integer"}}}, "Test/2": unusable})
    assert [case.name for case in suite.cases()] == ["tool/mine", "Test/1", "Test/2"]
    first, second, third = verified(endpoint(AppTransport(gateway())), suites=[suite])
    assert first.passed and second.passed
    assert third.untested and "the schema cannot be used" in third.untested.because and not third.untested.blocking


class CallsAnother(NoConstraint):
    def wish(self, prompt: str, completion: Completion) -> Message:
        wish = wished(prompt)
        return Message("", wish.reasoning, tuple(type(call)("functions.other:0", "other", "{}") for call in wish.calls))


def test_a_call_of_another_tool_is_a_failure() -> None:
    (outcome,) = verified(endpoint(AppTransport(gateway(CallsAnother()))), suites=[Only(Schema(), "kind/set_switch")])
    assert "call 0 is of 'other' and not of 'set_switch'" in outcome.failures[0].evidence


# -- injection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", [kimi(), Language()], ids=["by tokens", "by counts"])
def test_text_that_becomes_control_tokens_is_found_with_and_without_a_format(language: Language) -> None:
    suite = Only(Injection(), "user", "result")
    outcomes = verified(endpoint(text_becomes_control()), suites=[suite], language=language)
    assert all(outcome.failures for outcome in outcomes)
    for outcome in outcomes:
        assert {failure.step for failure in outcome.failures} == {"prompt"}
        assert "<|im_end|>" in outcome.failures[0].evidence


def without_usage(path: str, body: Any, reply: Reply) -> Reply:
    if path != "/v1/chat/completions" or not reply.body.startswith(b"{"):
        return reply
    decoded = json.loads(reply.body)
    decoded.pop("usage", None)
    for choice in decoded.get("choices", ()):
        choice["message"].pop("dovetail", None)
    return Reply(reply.status, reply.headers, json.dumps(decoded).encode())


def test_an_endpoint_that_counts_no_tokens_is_not_tested() -> None:
    silent = endpoint(AppTransport(gateway(), without_usage))
    outcomes = verified(silent, suites=[Only(Injection(), "user"), Only(Long(), "1000/depth-0.1")], language=Language())
    assert reasons(outcomes) == {"it does not count the tokens of prompts (usage.prompt_tokens)"}


# -- calls -----------------------------------------------------------------------------------------------------------


def measured(case: int, finish: str, valid: bool | None, reference: list[str] | None = None) -> Outcome:
    measures: dict[str, Any] = {"finish": finish, "valid": valid}
    if reference is not None:
        measures["reference"] = [Run(each, True if each == "tool_calls" else None) for each in reference]
    return Outcome(0, "calls", f"sample-{case}", 0, str(case), measures=measures)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_precision_recall_and_f1_are_those_of_sets(pairs: list[tuple[bool, bool]]) -> None:
    ours = {i for i, (first, _) in enumerate(pairs) if first}
    theirs = {i for i, (_, second) in enumerate(pairs) if second}
    both, confusion = len(ours & theirs), Confusion(pairs)
    assert confusion.precision == (both / len(ours) if ours else None)
    assert confusion.recall == (both / len(theirs) if theirs else None)
    if confusion.precision and confusion.recall:
        harmonic = 2 * confusion.precision * confusion.recall / (confusion.precision + confusion.recall)
        assert confusion.f1 == pytest.approx(harmonic)
    else:
        assert not confusion.f1


def test_a_difference_is_judged_against_what_the_reference_makes_of_itself() -> None:
    turns = itertools.cycle([["tool_calls", "tool_calls"], ["tool_calls", "stop"], ["stop", "stop"]])
    references = [next(turns) for _ in range(45)]
    agreeing = [measured(i, reference[1], None, reference) for i, reference in enumerate(references)]
    assert Calls([]).verdicts(agreeing) == ()
    silent = [measured(i, "stop", None, reference) for i, reference in enumerate(references)]
    (failure,) = Calls([]).verdicts(silent)
    assert failure.step == "model" and "is 0.0000, and the reference's against itself 0.6667" in failure.evidence
    values = {name: figure.value for name, figure in Calls([]).figures(agreeing).items()}
    assert values["tool_call_f1"] == values["tool_call_f1 of the reference with itself"] == pytest.approx(2 / 3)


def test_a_reference_is_asked_twice() -> None:
    tested, other = AppTransport(gateway()), AppTransport(gateway())
    suite = Calls(reference=Reference(endpoint(other)))
    few = Only(suite, "sample-1", "sample-30")
    values = figures(verified(endpoint(tested), suites=[few]), few)
    assert values["tool_call_f1"] == values["tool_call_f1 of the reference with itself"] == 1
    asked = [json.loads(body) for _, body in other.requests if body and b'"temperature":0.6' in body]
    assert len(asked) == 2 * len(few.cases())


def test_a_reference_that_is_down_is_why_nothing_is_tested() -> None:
    def gone(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(500, {}, b"gone")

    suite = Only(Calls(reference=Reference(endpoint(AppTransport(gateway(), gone)))), "sample-1")
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite])
    assert all(reason.startswith("of the reference: it lists no model") for reason in reasons(outcomes))


def result(index: int, finish: str | None, valid: bool | None = None) -> str:
    """A line of Moonshot's results.jsonl."""
    status = "failed" if finish is None else "success"
    row = {"data_index": index, "status": status, "finish_reason": finish, "tool_calls_valid": valid}
    return json.dumps(row) + "\n"


def test_samples_and_recorded_results_are_read_as_moonshots_program_writes_them(tmp_path: Path) -> None:
    body = {"messages": [{"role": "_input", "content": "x"}, {"role": "user", "content": "Hello!"}], "max_tokens": 64}
    (tmp_path / "samples.jsonl").write_text(f"{json.dumps(body)}\n\n{json.dumps({**body, 'stream': True})}\n")
    (tmp_path / "results.jsonl").write_text(result(1, "stop") + result(2, None))
    recorded = read_results([str(tmp_path / "results.jsonl")])
    assert recorded == [{1: Run("stop")}, {}]
    transport = AppTransport(gateway())
    suite = Calls(read_samples(str(tmp_path / "samples.jsonl")), Reference(recorded=recorded))
    outcomes = verified(endpoint(transport), suites=[suite])
    assert [outcome.measures["reference"] for outcome in outcomes] == [[Run("stop")], []]
    sent = json.loads(transport.requests[-1][1] or b"")
    assert sent["messages"][0]["role"] == "system" and "seed" not in sent
    assert figures(outcomes, suite)["finish_stop"] == 2


def recorded(folder: Path, *files: str) -> list[dict[int, Run]]:
    paths = [folder / f"results-{i}.jsonl" for i in range(len(files))]
    for path, lines in zip(paths, files, strict=True):
        path.write_text(lines)
    return read_results([str(path) for path in paths])


FIRST = result(1, "tool_calls", True) + result(2, "stop") + result(3, None) + result(4, "tool_calls", False)
SECOND = result(1, "stop") + result(2, "length") + result(3, "stop")


@pytest.mark.parametrize("files", [(FIRST, SECOND), (FIRST + SECOND,)], ids=["two files", "one file of two runs"])
def test_a_recorded_reference_of_two_runs_has_its_own_band(files: tuple[str, ...], tmp_path: Path) -> None:
    runs = recorded(tmp_path, *files)
    answers = [[run.get(index) for run in runs] for index in (1, 2, 3, 4)]
    assert answers == [
        [Run("tool_calls", True), Run("stop")],
        [Run("stop"), Run("length")],
        [Run("stop"), None],
        [Run("tool_calls", False), None],
    ]
    many = [{line + 4 * turn: run[line] for turn in range(20) for line in run} for run in runs]
    samples = [{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}] * 80
    suite = Calls(samples, Reference(recorded=many))
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite])
    values = figures(outcomes, suite)
    assert values["tool_call_f1 of the reference with itself"] == 0 and suite.missing(outcomes) == ()
    assert values["tool_call_recall"] == 0 and values["similarity"] == pytest.approx(
        1 - (0.5**2 * 2 + 2 * 0.25**2) ** 0.5
    )


def test_a_recorded_reference_of_one_run_has_figures_and_says_that_there_is_no_band(tmp_path: Path) -> None:
    (run, _) = recorded(tmp_path, result(1, "tool_calls") + result(2, "stop"))
    samples = [{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}] * 2
    suite = Calls(samples, Reference(recorded=[run]))
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite])
    assert figures(outcomes, suite)["tool_call_f1"] == 0 and suite.verdicts(outcomes) == ()
    assert figures(outcomes, suite)["similarity"] is None  # whether the call was valid is not recorded
    (untested,) = results([suite], outcomes).not_tested
    assert untested.suite == "calls" and "the reference has one run" in untested.because
    assert "F1 has no band" in untested.because
    other = Calls(samples, Reference(recorded=[{7: Run("stop")}]))
    (untested,) = results([other], verified(endpoint(AppTransport(gateway())), suites=[other])).not_tested
    assert untested.because == "the reference has none of the samples"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((FIRST, FIRST), "results-1.jsonl is the same as .*results-0.jsonl: give another run"),
        ((FIRST, SECOND + result(2, "stop")), "results-1.jsonl, line 4: a third run of sample 2"),
        ((FIRST, "3"), "results-1.jsonl, line 1: a result has data_index"),
    ],
)
def test_recorded_runs_that_make_no_band_are_refused(files: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=message):
        recorded(tmp_path, *files)


def test_calls_that_are_announced_and_missing_are_not_valid() -> None:
    def without_calls(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b'"tool_calls":[', b'"other":['))

    outcome = one(AppTransport(gateway(), without_calls), Calls(), "sample-10")
    assert outcome.measures["finish"] == "tool_calls" and outcome.measures["valid"] is False


def test_a_call_without_a_schema_does_not_count_as_valid() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather"}}
    message = {"role": "user", "content": "Please get the weather for city Paris."}
    suite = Calls([{"messages": [message], "tools": [tool], "max_tokens": 64}])
    (outcome,) = verified(endpoint(AppTransport(gateway())), suites=[suite])
    assert outcome.failures and outcome.measures["valid"] is False


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_samples, "{}", "line 1: a sample is the body of a request"),
        (read_samples, '\n{"messages": [3]}', "line 2: each of messages must be an object"),
        (read_samples, "{", "line 1 is not JSON"),
        (lambda path: read_results([path]), "3", "line 1: a result has data_index"),
    ],
)
def test_files_of_another_shape_are_refused(
    read: Callable[[str], Any], text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        read(str(tmp_path / "file"))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(str(tmp_path / "no such file"))


# -- long ------------------------------------------------------------------------------------------------------------


def test_long_prompts_up_to_the_context_are_tested() -> None:
    suite = Only(Long(), "1000/", "2000/depth-0.1", "4000/at", "130000/at")
    outcomes = verified(endpoint(AppTransport(gateway())), suites=[suite])
    assert [outcome.passed for outcome in outcomes] == [True] * 5 + [False] * 2
    assert reasons(outcomes[5:]) == {"its context of 4096 tokens is shorter"}
    assert all(abs(outcome.measures["tokens"] - outcome.measures["length"]) < 40 for outcome in outcomes[:5])


class Forgets(Model):
    def wish(self, prompt: str, completion: Completion) -> Message:
        return wished(prompt.replace("The city is", ""))


def test_a_model_that_loses_the_needle_at_once_is_not_tested() -> None:
    outcomes = verified(endpoint(AppTransport(gateway(Forgets()))), suites=[Only(Long(), "1000/")])
    assert len(reasons(outcomes)) == 1 and "its model answers wrong after" in str(reasons(outcomes))


# -- speculation -----------------------------------------------------------------------------------------------------


class NoDrafter(Model):
    def __init__(self) -> None:
        super().__init__((1,))


def test_an_endpoint_without_drafts_is_not_tested() -> None:
    suite = Only(Speculation(), "greedy/text-1", "sampled/text")
    outcomes = verified(endpoint(AppTransport(gateway(NoDrafter()))), suites=[suite])
    assert all("no token was drafted" in reason for reason in reasons(outcomes))

    def foreign(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b'"speculation"', b'"other"'))

    outcomes = verified(endpoint(AppTransport(gateway(), foreign)), suites=[suite])
    (reason,) = reasons(outcomes)
    assert "cannot be asked for an answer without drafts; another endpoint without drafter can (--undrafted" in reason


def uncounted(path: str, body: Any, reply: Reply) -> Reply:
    """As servers reply that do not count drafts in their usage."""
    return Reply(reply.status, reply.headers, reply.body.replace(b'"speculation"', b'"other"'))


def beside(tested: Endpoint, model: Model | None = None) -> Speculation:
    """The suite with an endpoint without drafter beside the tested one."""
    other = Companion(endpoint(AppTransport(gateway(model or NoDrafter()))), "endpoint without drafter")
    return Speculation({tested: other})


def test_another_endpoint_without_drafter_shows_what_drafts_change() -> None:
    tested = endpoint(AppTransport(gateway(), uncounted))
    few = Only(beside(tested), "greedy/call-paris", "greedy/text-1", "sampled/text")
    sound = verified(tested, suites=[few])
    assert [outcome for outcome in sound if not outcome.passed] == []
    assert figures(sound, few) == {"passed": 1, "sampled answers that are equal with the same seed": 1}
    broken = endpoint(AppTransport(gateway(WrongVerification()), uncounted))
    (outcome,) = verified(broken, suites=[Only(beside(broken), "greedy/call-paris")])
    assert outcome.failures[0].step == "draft" and "differ from token" in outcome.failures[0].evidence


def test_an_endpoint_that_drafts_is_asked_not_to_where_it_stands_for_one_without_drafter() -> None:
    tested = endpoint(AppTransport(gateway(), uncounted))
    (outcome,) = verified(tested, suites=[Only(beside(tested, Model()), "greedy/call-paris")])
    assert outcome.passed


def test_each_of_two_endpoints_has_an_endpoint_without_drafter_of_its_own() -> None:
    """The first has one, the second is asked itself; then both have one, of which the second's is of another model."""
    first, second = endpoint(AppTransport(gateway(), uncounted)), endpoint(AppTransport(gateway()))
    suite = Only(beside(first), "greedy/call-paris")
    assert [outcome.passed for outcome in verified(first, second, suites=[suite])] == [True, True]
    third = endpoint(AppTransport(gateway(), uncounted))
    outcomes = verified(first, third, suites=[suite])
    assert [outcome.passed for outcome in outcomes] == [True, False]
    assert "--undrafted-2 for URL2" in because(outcomes[1])
    both = Speculation(
        {
            each: Companion(endpoint(AppTransport(gateway(model))), "endpoint without drafter")
            for each, model in ((first, NoDrafter()), (third, NeverCalls((1,))))
        }
    )
    outcomes = verified(first, third, suites=[Only(both, "greedy/call-paris")])
    assert [[failure.step for failure in outcome.failures] for outcome in outcomes] == [[], ["draft"]]


def test_an_endpoint_without_drafter_that_is_down_is_why_nothing_is_tested() -> None:
    down = endpoint(AppTransport(gateway(), lambda path, body, reply: Reply(500, {}, b"gone")))
    tested = endpoint(AppTransport(gateway()))
    suite = Only(Speculation({tested: Companion(down, "endpoint without drafter")}), "greedy/text")
    outcomes = verified(tested, suites=[suite])
    assert len(outcomes) == 4 and all(
        "of the endpoint without drafter: it lists no model" in reason for reason in reasons(outcomes)
    )


class Samples(Model):
    """Draws one of two texts by its seed, and the other one with drafting off."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        seed = (completion.sampling.seed or 0) + (completion.draft_tokens == 0)
        return Message(("Hello there.", "Good morning.")[seed % 2])


def test_sampled_answers_may_differ_with_the_same_seed_if_their_distribution_is_the_same() -> None:
    suite = Only(Speculation(), "sampled/text")
    outcomes = verified(endpoint(AppTransport(gateway(Samples()))), suites=[suite])
    assert outcomes[0].passed and outcomes[0].measures["p"] > 0.001
    assert figures(outcomes, suite)["sampled answers that are equal with the same seed"] == 0


def test_greedy_answers_that_differ_without_ids_are_compared_as_messages() -> None:
    def without_ids(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b'"token_ids"', b'"other"'))

    suite = Only(Speculation(), "greedy/call-paris")
    (sound,) = verified(endpoint(AppTransport(gateway(), without_ids)), suites=[suite])
    assert sound.passed
    (outcome,) = verified(endpoint(AppTransport(gateway(WrongVerification()), without_ids)), suites=[suite])
    assert "greedy answers differ: arguments of call 0" in outcome.failures[0].evidence


def test_a_sampled_answer_that_drafting_changes_is_found() -> None:
    suite = Only(Speculation(), "sampled/call")
    (outcome,) = verified(endpoint(AppTransport(gateway(WrongVerification()))), suites=[suite])
    assert outcome.failures[0].step == "draft" and "permutation test" in outcome.failures[0].evidence


def test_every_suite_has_cases_with_names_of_their_own() -> None:
    for suite in (Protocol(), Schema(), Injection(), Calls(), Long(), Speculation()):
        names = [case.name for case in suite.cases()]
        assert len(set(names)) == len(names) > 5


# -- what is seldom ----------------------------------------------------------------------------------------------------


def one(transport: AppTransport, suite: Suite, name: str, language: Language | None = None) -> Outcome:
    (outcome,) = verified(endpoint(transport), suites=[Only(suite, name)], language=language)
    return outcome  # type: ignore[no-any-return]


def because(outcome: Outcome) -> str:
    return outcome.untested.because if outcome.untested else ""


@pytest.mark.parametrize(("suite", "case"), [(Injection(), "result"), (Speculation(), "greedy/call-paris")])
def test_cases_with_tools_need_them(suite: Suite, case: str) -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        refused = body and "tools" in json.loads(body)
        return Reply(400, {}, b'{"error": {"message": "no tools"}}') if refused else reply

    assert "it refuses a request with tools" in because(one(AppTransport(gateway(), change), suite, case))


def changed_usage(count: Callable[[int], Any]) -> AppTransport:
    """An endpoint that counts the tokens of prompts in its own way, and returns none of them."""

    def change(path: str, body: Any, reply: Reply) -> Reply:
        if path != "/v1/chat/completions" or not reply.body.startswith(b"{"):
            return reply
        decoded = json.loads(reply.body)
        if "usage" in decoded:
            decoded["usage"]["prompt_tokens"] = count(decoded["usage"]["prompt_tokens"])
            decoded["choices"][0]["message"].pop("dovetail", None)
        return Reply(reply.status, reply.headers, json.dumps(decoded).encode())

    return AppTransport(gateway(), change)


def test_injection_counts_without_token_ids() -> None:
    def without_ids(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b"token_ids", b"other_ids"))

    assert one(AppTransport(gateway(), without_ids), Injection(), "user-part").passed


def test_a_place_that_no_prompt_has_is_not_tested() -> None:
    """A template may drop the reasoning of earlier turns: then no text adds a token."""
    assert because(one(changed_usage(lambda n: 7), Injection(), "reasoning")).startswith("its prompts do not have this")


def test_long_prompts_need_counts_that_grow_and_a_known_context() -> None:
    assert "longer prompts have no more tokens" in because(one(changed_usage(lambda n: 7), Long(), "1000/at"))

    def unknown(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b"max_model_len", b"other"))

    assert "it does not tell its context" in because(one(AppTransport(gateway(), unknown), Long(), "32000/at"))


class AnswersAtLength(NoConstraint):
    """Answers otherwise after a thousand tokens."""

    answer = Message("I do not know.")

    def wish(self, prompt: str, completion: Completion) -> Message:
        return self.answer if len(completion.prompt) > 900 else wished(prompt)


class NoObject(AnswersAtLength):
    def wish(self, prompt: str, completion: Completion) -> Message:
        wish = super().wish(prompt, completion)
        call = Call("functions.get_weather:0", "get_weather", "[1]")
        return Message("", "", (call,)) if wish is self.answer else wish


def test_what_long_prompts_do_to_calls_is_a_figure() -> None:
    suite = Only(Long(), "1000/at")
    outcomes = verified(endpoint(AppTransport(gateway(AnswersAtLength(), strict="off"))), suites=[suite])
    assert figures(outcomes, suite)["passed at 1000 tokens"] == 0 and outcomes[0].failures[0].step == "schema"
    (outcome,) = verified(endpoint(AppTransport(gateway(NoObject(), strict="off"))), suites=[suite])
    assert 'the call is of {"malformed_arguments": "[1]"} and not of Lima' in outcome.failures[0].evidence


def test_an_endpoint_without_streams_is_tested_whole() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        refused = body and "stream" in json.loads(body)
        return Reply(400, {}, b'{"error": {"message": "no streams"}}') if refused else reply

    assert one(AppTransport(gateway(), change), Schema(), "kind/set_switch").measures["finished"] == 1


def test_a_sample_that_is_refused_is_not_tested_and_unusable_schemas_are_not_valid() -> None:
    message = {"role": "user", "content": "Please get the weather for city Paris."}
    refused = Calls([{"messages": [message], "temperature": "hot"}])
    assert "it refused a sample" in because(one(AppTransport(gateway()), refused, "sample-1"))
    unusable = {"name": "get_weather", "description": "Get the weather", "parameters": {"pattern": "("}}
    suite = Calls([{"messages": [message], "tools": [{"type": "function", "function": unusable}], "max_tokens": 64}])
    assert one(AppTransport(gateway()), suite, "sample-1").measures["valid"] is False
    assert (
        Calls([]).figures([measured(0, "stop", None, [])]).keys()
        == Calls([]).figures([measured(0, "stop", None)]).keys()
    )


def test_sampled_answers_without_ids_are_compared_as_texts() -> None:
    def without_ids(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b"token_ids", b"other_ids"))

    assert one(AppTransport(gateway(), without_ids), Speculation(), "sampled/text").passed
    assert one(AppTransport(gateway(WrongVerification()), without_ids), Speculation(), "sampled/call").failures
