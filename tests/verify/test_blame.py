"""The step that is blamed rests on evidence, and the evidence says what is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.client.transport import Reply
from dovetail.completion import Completion
from dovetail.events import Call, Message
from dovetail.verify.language import Language, first_difference, message_difference, thinks
from dovetail.verify.outcome import Failure, Outcome
from dovetail.verify.probe import Companion
from dovetail.verify.suites import Protocol, Schema, Speculation
from tests.verify.broken import (
    DraftsEndTheTurn,
    NeverCalls,
    WrongVerification,
    calls_lost_in_big_deltas,
    ids_of_another_scheme,
    no_generation_prompt,
    replied,
    results_dropped,
    text_becomes_control,
)
from tests.verify.harness import AppTransport, Only, endpoint, gateway, kimi, verified
from tests.verify.model import Model, wished


def failure(transport: AppTransport, *cases: str, language: Language | None = None) -> Failure:
    """The only failure of these cases."""
    outcomes = verified(endpoint(transport), suites=[Only(Protocol(), *cases)], language=language)
    (only,) = [failure for outcome in outcomes for failure in outcome.failures]
    return only


def without_ids(path: str, body: Any, reply: Reply) -> Reply:
    return Reply(reply.status, reply.headers, reply.body.replace(b'"token_ids"', b'"other"'))


def test_a_model_is_blamed_only_after_all_others() -> None:
    blamed = failure(AppTransport(gateway(NeverCalls())), "call/auto-of")
    assert blamed.step == "model"
    assert "the prompt is ours; our reader reads its tokens as it does" in blamed.evidence


def test_without_a_format_the_evidence_says_that_it_is_missing() -> None:
    blamed = failure(calls_lost_in_big_deltas(), "call/two", language=Language())
    # The reader is suspected; but what is known is that it does not happen without drafts.
    assert blamed.step == "draft"
    blamed = failure(AppTransport(gateway(NeverCalls())), "call/auto-of", language=Language())
    assert blamed.step == "reader"
    assert "whether the reader is at fault is not known: give the model's --format or --model" in blamed.evidence


def test_without_token_ids_the_evidence_says_so() -> None:
    def without_completions(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(404, {}, b"{}") if path == "/v1/completions" else without_ids(path, body, reply)

    blamed = failure(AppTransport(gateway(NeverCalls()), without_completions), "call/auto-of")
    assert blamed.step == "reader" and "the endpoint returns no token ids" in blamed.evidence


def chained(transport: AppTransport) -> AppTransport:
    """The endpoint, which returns no token ids."""
    change = transport._change
    transport._change = lambda path, body, reply: without_ids(path, body, change(path, body, reply))
    return transport


def test_without_token_ids_raw_completions_tell_prompt_reader_and_model_apart() -> None:
    assert failure(chained(AppTransport(gateway(NeverCalls()))), "call/auto-of").step == "model"
    blamed = failure(chained(calls_lost_in_big_deltas()), "call/two")
    assert (
        blamed.step == "reader"
        and "/v1/completions writes for the same prompt: ours has 2 calls, it 0" in blamed.evidence
    )
    blamed = failure(chained(no_generation_prompt()), "call/auto-of")
    assert blamed.step == "prompt" and "<|im_assistant|>assistant<|im_middle|>" in blamed.evidence  # by /tokenize


@pytest.mark.parametrize(
    ("status", "page"),
    [(404, b"{}"), (200, b"{}"), (200, b"<html>"), (200, b'{"tokens": [1]}'), (200, b'{"tokens": "text"}')],
)
def test_without_a_useful_tokenize_counts_show_that_the_prompt_is_another(status: int, page: bytes) -> None:
    tokenizing = chained(no_generation_prompt())
    change = tokenizing._change

    def changed(path: str, body: Any, reply: Reply) -> Reply:
        # The probe has to see an endpoint that answers.
        useless = path == "/tokenize" and (status != 200 or b'"tools"' in (body or b""))
        return Reply(status, {}, page) if useless else change(path, body, reply)

    tokenizing._change = changed
    blamed = failure(tokenizing, "call/auto-of")
    assert blamed.step == "prompt" and "by its own count its prompt has" in blamed.evidence


def test_a_format_alone_shows_nothing_of_an_endpoint_without_detokenizer_and_completions() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(404, {}, b"{}") if path in ("/detokenize", "/v1/completions") else reply

    blamed = failure(AppTransport(gateway(NeverCalls()), change), "call/auto-of", language=kimi(tokens=False))
    assert "is not known" in blamed.evidence


def test_rerunning_without_drafts_may_fail_to_be_tested() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        undrafted = body and json.loads(body).get("dovetail", {}).get("draft_tokens") == 0
        return Reply(400, {}, b'{"error": {"message": "no"}}') if undrafted else reply

    blamed = failure(AppTransport(gateway(DraftsEndTheTurn(), strict="off"), change), "call/auto-of")
    assert blamed.step == "model"


@pytest.mark.parametrize("page", [b"{}", b"<html>", b'{"choices": [3]}'])
def test_raw_completions_of_another_shape_show_nothing(page: bytes) -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(200, {}, page) if path == "/v1/completions" else without_ids(path, body, reply)

    assert "is not known" in failure(AppTransport(gateway(NeverCalls()), change), "call/auto-of").evidence


def test_drafts_are_blamed_if_the_case_passes_without_them_and_fails_again_with_them() -> None:
    blamed = failure(AppTransport(gateway(DraftsEndTheTurn(), strict="off")), "call/auto-of")
    assert blamed.step == "draft"
    assert "with drafting off it is gone, and with drafting on it is there again" in blamed.evidence


class OnceOnly(Model):
    """Fails when it is asked for the first time."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        wish = wished(prompt)
        first = completion.max_tokens > 16 and not any(each.max_tokens > 16 for each in self.seen[:-1])
        return Message("Not now.", wish.reasoning) if first and wish.calls else wish


@pytest.mark.parametrize(
    ("here", "there", "step"),
    [(DraftsEndTheTurn, Model, "draft"), (DraftsEndTheTurn, NeverCalls, "model"), (NeverCalls, NeverCalls, "model")],
)
def test_drafts_are_blamed_by_another_endpoint_without_drafter(
    here: type[Model], there: type[Model], step: str
) -> None:
    """The tested one counts no drafts and cannot turn them off."""

    def uncounted(path: str, body: Any, reply: Reply) -> Reply:
        return Reply(reply.status, reply.headers, reply.body.replace(b'"speculation"', b'"other"'))

    other = Companion(endpoint(AppTransport(gateway(there((1,))))), "endpoint without drafter")
    suite, tested = Only(Protocol(), "call/auto-of"), endpoint(AppTransport(gateway(here()), uncounted))
    (outcome,) = verified(tested, suites=[suite], undrafted={tested: other})
    assert [failure.step for failure in outcome.failures] == [step]


def test_what_fails_once_only_is_not_blamed_on_drafts() -> None:
    assert failure(AppTransport(gateway(OnceOnly())), "call/auto-of").step == "model"


class BusyWithoutDrafts(DraftsEndTheTurn):
    """An engine that cannot be asked without drafts."""

    async def complete(self, completion: Completion) -> Any:
        if completion.draft_tokens == 0:
            raise RuntimeError("no")
        async for batch in super().complete(completion):
            yield batch


def test_an_endpoint_that_fails_without_drafts_leaves_them_unblamed() -> None:
    assert failure(AppTransport(gateway(BusyWithoutDrafts(), strict="off")), "call/auto-of").step == "model"


def test_a_format_without_a_tokenizer_is_enough_for_prompt_and_reader() -> None:
    blamed = failure(ids_of_another_scheme(), "call/auto-of", language=kimi(tokens=False))
    assert blamed.step == "reader" and "ours 'functions.get_weather:0', it 'call_0'" in blamed.evidence


def test_equal_texts_of_different_tokens_are_told_apart() -> None:
    outcomes = verified(
        endpoint(text_becomes_control()),
        suites=[Only(Protocol(), "finish/stop")],  # a prompt without spelled tokens
    )
    assert outcomes[0].passed


def test_a_detokenizer_that_fails_leaves_the_reader_unknown() -> None:
    def broken(status: int, page: bytes) -> AppTransport:
        asked: list[str] = []

        def change(path: str, body: Any, reply: Reply) -> Reply:
            asked.append(path)
            if path == "/v1/completions":
                return Reply(404, {}, b"{}")
            return Reply(status, {}, page) if path == "/detokenize" and asked.count(path) > 1 else reply

        return AppTransport(gateway(NeverCalls()), change)

    for status, page in ((400, b"{}"), (200, b'{"prompt": 3}')):
        blamed = failure(broken(status, page), "call/auto-of", language=kimi(tokens=False))
        assert "is not known" in blamed.evidence


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled"}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"enable_thinking": False}, False),
    ],
)
def test_every_switch_of_reasoning_is_known(request_: dict[str, Any], expected: bool) -> None:
    assert thinks(request_) is expected


def test_differences_are_shown_where_they_begin() -> None:
    assert first_difference("abc", "abd") == "at character 2: ours 'abc', the endpoint's 'abd'"
    assert first_difference("ab", "ab ") == "at character 2: ours 'ab', the endpoint's 'ab '"
    calls = [Message(calls=(Call("a", name, arguments),)) for name, arguments in (("f", "{}"), ("g", "{}"), ("f", "{"))]
    assert "names 'f', it 'g'" in message_difference(calls[0], calls[1], ids=True)
    assert "arguments of call 0" in message_difference(calls[0], calls[2], ids=True)
    texts = message_difference(Message("ab"), Message("ac"), ids=True, names=("whole", "streamed"))
    assert texts == "content at character 1: whole 'ab', streamed 'ac'"
    assert message_difference(Message("x "), Message("x"), ids=True) == ""


def test_a_format_that_cannot_write_a_conversation_says_nothing() -> None:
    assert kimi().prompt({"messages": [{"role": "wizard"}]}) is None
    assert Language().prompt({"messages": []}) is None


# -- checks of the protocol that need an endpoint of their own -------------------------------------------------------


def test_a_result_that_is_not_in_the_prompt_is_found_without_a_format() -> None:
    blamed = failure(results_dropped(), "prompt/result", language=Language())
    assert blamed.step == "prompt" and "the result of a call is not in the prompt" in blamed.evidence


def test_an_answer_without_content_is_a_finding() -> None:
    def empty(response: Any) -> None:
        response["choices"][0]["message"]["content"] = ""

    blamed = failure(replied(empty, streamed=False), "multi-turn/result")
    assert blamed.step == "reader" and "the content is '', without ''" in blamed.evidence


def protocol(transport: AppTransport, *cases: str) -> list[Outcome]:
    return list(verified(endpoint(transport), suites=[Only(Protocol(), *cases)]))


def test_an_answer_that_runs_to_its_limit_is_not_tested() -> None:
    class Endless(Model):
        def wish(self, prompt: str, completion: Completion) -> Message:
            return Message("word " * 400)

    (outcome,) = protocol(AppTransport(gateway(Endless())), "finish/stop")
    assert outcome.untested and "ran to its limit of 256 tokens" in outcome.untested.because


def endless(response: Any) -> None:
    (choice,) = response["choices"]
    if calls := choice["message"].get("tool_calls"):
        choice["finish_reason"], choice["message"]["tool_calls"] = "length", calls * 3


@pytest.mark.parametrize("case", ["tool-choice/required", "tool-choice/named"])
def test_a_forced_call_that_runs_to_its_limit_is_a_failure(case: str) -> None:
    transport = replied(endless, streamed=False)
    outcome = protocol(transport, case)[0]
    assert len(outcome.failures) == 1
    assert "did not end after its calls, but ran to its limit of 256 tokens" in outcome.failures[0].evidence


def test_a_forced_call_that_is_cut_in_its_arguments_is_not_tested() -> None:
    def cut(response: Any) -> None:
        (choice,) = response["choices"]
        if calls := choice["message"].get("tool_calls"):
            choice["finish_reason"] = "length"
            calls[0]["function"]["arguments"] = calls[0]["function"]["arguments"][:-1]

    outcome = protocol(replied(cut, streamed=False), "tool-choice/required")[0]
    assert outcome.untested and "ran to its limit of 256 tokens" in outcome.untested.because


def test_forced_calls_without_an_end_are_failures_of_the_schema_suite() -> None:
    suite = Only(Schema(), "kind/set_switch")
    (outcome,) = verified(endpoint(replied(endless, streamed=False)), suites=[suite])
    assert "ran to its limit" in outcome.failures[0].evidence


def test_a_model_without_reasoning_has_no_switch() -> None:
    class Plain(Model):
        def wish(self, prompt: str, completion: Completion) -> Message:
            return Message(wished(prompt).content or "Yes.")

    (outcome,) = protocol(AppTransport(gateway(Plain())), "reasoning/")
    assert outcome.untested and "no reasoning that could be turned off" in outcome.untested.because


def test_an_endpoint_that_knows_no_switch_is_not_tested() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        switches = ("chat_template_kwargs", "thinking", "reasoning_effort")
        if body and any(switch in json.loads(body) for switch in switches):
            return Reply(400, {}, b'{"error": {"message": "unknown field"}}')
        return reply

    (outcome,) = protocol(AppTransport(gateway(), change), "reasoning/")
    assert outcome.untested and "it knows no way to turn reasoning off" in outcome.untested.because


def test_an_endpoint_that_refuses_a_case_is_not_tested() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        refused = body and "parallel_tool_calls" in json.loads(body)
        return Reply(400, {}, b'{"error": {"message": "unknown field"}}') if refused else reply

    outcomes = protocol(AppTransport(gateway(), change), "parallel/", "call/auto-of")
    assert [bool(outcome.untested) for outcome in outcomes] == [False, True, True]
    assert "unknown field" in str(outcomes[1].untested)


def test_ids_that_the_history_has_and_missing_ids_are_findings() -> None:
    def change(old: bytes, new: bytes) -> Any:
        return lambda path, body, reply: Reply(reply.status, reply.headers, reply.body.replace(old, new))

    taken = AppTransport(gateway(), change(b'"id":"functions.get_weather:1"', b'"id":"functions.get_weather:0"'))
    assert "is in the history" in failure(taken, "call/second-turn").evidence
    missing = AppTransport(gateway(), change(b'"id":"functions.get_weather:0"', b'"id":""'))
    assert "has no id" in failure(missing, "call/auto-of").evidence


def test_usage_of_a_stream_is_that_of_the_whole() -> None:
    def change(path: str, body: Any, reply: Reply) -> Reply:
        if not reply.body.startswith(b"data:"):
            return reply
        changed = reply.body.replace(b'"prompt_tokens":', b'"prompt_tokens":1').replace(
            b'"total_tokens":', b'"total_tokens":1'
        )
        return Reply(reply.status, reply.headers, changed)

    blamed = failure(AppTransport(gateway(), change), "stream-equals-whole/text")
    assert "the stream differs from the whole answer: usage" in blamed.evidence


def test_an_answer_that_changes_in_a_crowd_is_a_finding() -> None:
    class Crowded(Model):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def wish(self, prompt: str, completion: Completion) -> Message:
            self.count += completion.max_tokens > 16
            return Message("I am busy.") if self.count == 3 else wished(prompt)

    assert "beside other requests the answer differs" in failure(AppTransport(gateway(Crowded())), "together/").evidence


# -- near ties and defects of drafting -------------------------------------------------------------------------------


def scored(margin: float, status: int = 200) -> AppTransport:
    """Wrong drafts, and log probabilities by which each of the last two tokens of an answer is `margin` behind."""

    def change(path: str, body: Any, reply: Reply) -> Reply:
        if path != "/v1/completions":
            return reply
        n = len(json.loads(body)["prompt"])
        top = [None, *({"best": -1.0} for _ in range(n - 1))]
        own = [None, *(-1.0 for _ in range(n - 3)), -1.0 - margin, -1.0 - margin]
        page = {"choices": [{"logprobs": {"token_logprobs": own, "top_logprobs": top}}]}
        return Reply(status, {}, json.dumps(page).encode())

    return AppTransport(gateway(WrongVerification()), change)


def greedy(transport: AppTransport) -> Outcome:
    (outcome,) = verified(endpoint(transport), suites=[Only(Speculation(), "greedy/call-paris")])
    return outcome  # type: ignore[no-any-return]


def test_a_near_tie_is_no_defect() -> None:
    outcome = greedy(scored(0.01))
    assert outcome.passed and outcome.measures["near_ties"] is True


def test_a_defect_has_its_places_with_rank_and_margin() -> None:
    outcome = greedy(scored(2.5))
    assert outcome.failures[0].step == "draft"
    assert "rank 2, 2.50 nats" in outcome.failures[0].evidence
    assert "not the likeliest" not in greedy(scored(2.5, status=400)).failures[0].evidence


def test_an_endpoint_that_drafts_all_the_same_is_not_tested() -> None:
    class Always(Model):
        async def complete(self, completion: Completion) -> Any:
            import msgspec

            async for batch in super().complete(msgspec.structs.replace(completion, draft_tokens=None)):
                yield batch

    outcome = greedy(AppTransport(gateway(Always())))
    assert outcome.untested and "drafts although" in outcome.untested.because


def test_an_endpoint_that_is_not_repeatable_without_drafts_is_not_tested() -> None:
    class Fickle(Model):
        def wish(self, prompt: str, completion: Completion) -> Message:
            return Message(f"Answer {len(self.seen)}.")

    outcome = greedy(AppTransport(gateway(Fickle())))
    assert outcome.untested and "has two answers" in outcome.untested.because


def test_a_stream_that_is_cut_off_shows_nothing_of_the_prompt() -> None:
    def cut(path: str, body: Any, reply: Reply) -> Reply:
        cut_off = reply.body.startswith(b"data:")
        return Reply(200, reply.headers, reply.body[: len(reply.body) // 2]) if cut_off else reply

    blamed = failure(AppTransport(gateway(), cut), "stream-equals-whole/text")
    assert blamed.step == "reader"
    assert "there is no usage" in blamed.evidence and "its prompt has" not in blamed.evidence
