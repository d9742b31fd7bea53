"""`dovetail verify` as a command, against a server on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.gateway import Settings, create_app
from tests.verify.harness import gateway, served
from tests.verify.model import TARGET, Model

KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that needs the key."""
    with served(gateway(api_key=KEY)) as served_url:
        yield served_url


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("OPENAI_API_KEY", "OPENAI_API_KEY_2"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "key").write_text(f"{KEY}\n")
    return str(tmp_path / "key")


def test_a_run_writes_every_form_of_its_result_and_no_key(
    url: str, key_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--suite", "protocol", "--max-tokens", "256", "--keep", str(out)]
    files = ["--html", str(tmp_path / "page.html"), "--junit", str(tmp_path / "junit.xml")]
    code = main(["verify", f"{url}/v1", *options, *files, "--api-key-file", key_file, "--model", str(TARGET), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.out
    result = json.loads(printed.out)
    assert set(result) == {"failures", "suites", "not_tested"} and result["suites"]["protocol"]["passed"] == 40
    assert "if all pass" in printed.err
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "key"]
    assert {file.name for file in written} == {"page.html", "junit.xml", "journal.jsonl"}
    assert not any(KEY in text for text in (printed.out, printed.err, *(file.read_text() for file in written)))


def test_suite_silent_has_as_many_conversations_and_turns_as_asked_for(
    url: str, key_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", url, "--suite", "silent", "--api-key-file", key_file, "--model", str(TARGET)]
    kept = ["--keep", str(tmp_path / "out"), "--max-tokens", "256", "--json"]
    assert main([*command, *kept, "--conversations", "3", "--turns", "5"]) == 0
    printed = capsys.readouterr()
    suite = json.loads(printed.out)["suites"]["silent"]
    assert "silent: 3 cases from 3 conversations" in printed.err
    assert suite["n"] == suite["passed"] == 3
    figure = suite["figures"]["looping turns"]
    assert (figure["value"], figure["n"], figure["low"]) == (0, 15, 0) and figure["high"] == pytest.approx(
        0.2039, abs=1e-4
    )
    # Another number of turns is another run.
    assert main([*command, *kept, "--conversations", "3", "--turns", "6"]) == 2
    assert "choose another --keep folder" in capsys.readouterr().err
    for option in ("--turns", "--conversations"):
        with pytest.raises(SystemExit):
            main([*command, option, "0"])


def test_two_urls_have_a_key_each(
    url: str, key_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    command = ["verify", url, url, "--suite", "protocol", "--max-requests", "24", "--format", "kimi_k25"]
    assert main(command) == 2  # not all is tested
    assert "a key is needed, or another one (--api-key-file)" in capsys.readouterr().out
    monkeypatch.setenv("OPENAI_API_KEY_2", KEY)
    assert main(command) == 2
    printed = capsys.readouterr().out
    assert "difference" in printed and "a key is needed" not in printed
    assert "24 requests are sent (--max-requests)" in printed


def named(name: str) -> Any:
    """A gateway whose model has this name."""
    model = Model()
    return create_app(model, model.format, model.tokenizer, Settings(served_model_name=name))


def test_each_endpoint_may_have_a_model_name_of_its_own(
    key_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    with served(named("a")) as first, served(named("b")) as second, served(named("c")) as third:
        command = ["verify", first, second, "--suite", "calls", "--samples", str(tmp_path / "samples.jsonl"), "--json"]
        command += ["--reference", third, "--model-name", "a", "--reference-model-name", "c"]
        assert main([*command, "--model-name-2", "b"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert [each["suites"]["calls"]["n"] for each in (result, result["beside"])] == [1, 1]
        assert main(command) == 2
        assert "it does not serve 'a', but b" in capsys.readouterr().out


class Changed:
    """A gateway behind which each request with `field` in its body, or each request, is answered with `status`."""

    def __init__(self, app: Any, status: int, field: str = "", headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._app, self._status, self._field, self._headers = app, status, field, headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        request = await receive()
        if self._field and self._field not in json.loads(request["body"] or b"{}"):
            requests = iter([request])

            async def again() -> Any:
                return next(requests, None) or await receive()

            return await self._app(scope, again, send)  # type: ignore[no-any-return]
        if not self._status:  # never answers
            while (await receive())["type"] != "http.disconnect":
                pass
            return None
        await send({"type": "http.response.start", "status": self._status, "headers": [*self._headers]})
        return await send({"type": "http.response.body", "body": b'{"error": {"message": "not here"}}'})  # type: ignore[no-any-return]


BAD = {
    "slow": (Changed(gateway(), 0), ["--timeout", "0.1"], "it did not finish an answer within 0.1 seconds"),
    "rate-limited": (
        Changed(gateway(), 429, headers=[(b"retry-after", b"999")]),
        [],
        "it answered 429 and is to be asked again in 999 seconds, after 0 of waiting; 120 is the most (--max-wait)",
    ),
    "broken": (Changed(gateway(), 500), ["--model-name", "knowing"], "it answered 500: not here"),
    "without tools": (Changed(gateway(), 400, "tools"), [], "it refuses a request with tools: 400: not here"),
    "without chat": (Changed(gateway(), 404, "messages"), [], "it has no chat completions or no model 'knowing'"),
    "of another name": (gateway(), ["--model-name", "other"], "it does not serve 'other', but knowing"),
}


@pytest.mark.parametrize("bad", BAD)
def test_an_endpoint_that_cannot_be_tested_has_a_verdict_and_no_score(
    bad: str, key_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app, options, because = BAD[bad]
    with served(app) as url:
        assert main(["verify", url, "--suite", "calls", "--json", *options]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["failures"] == [] and result["suites"] == {}
    assert [each["suite"] for each in result["not_tested"]] == ["calls"]
    assert because in result["not_tested"][0]["because"]


def test_an_endpoint_that_is_down_has_a_verdict_and_no_score(key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert main(["verify", url, "--json"]) == 2
    result = json.loads(capsys.readouterr().out)
    assert result["failures"] == [] and result["suites"] == {}
    assert {each["because"] for each in result["not_tested"]} == {"it cannot be reached: Connection refused"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--suite", "protocoll"], "--suite knows no 'protocoll'; it knows protocol"),
        (["--fail-on", "luck"], "--fail-on knows no 'luck'"),
        (["--format", "nothing"], "nothing"),
        (["--api-key-file", "/no/such/file"], "the key file /no/such/file cannot be read"),
        (["--html", "/no/such/folder/page.html"], "the folder of /no/such/folder/page.html is missing"),
        (["--junit", "/no/such/folder/junit.xml"], "the folder of /no/such/folder/junit.xml is missing"),
        (["--model-name-2", "m"], "--model-name-2 is for URL2, which is not given"),
        (["--undrafted-2", "http://127.0.0.1:9"], "--undrafted-2 is for URL2, which is not given"),
        (
            ["--reference", "a", "--reference", "http://127.0.0.1:9"],
            "one URL, which is asked twice, or one or two files",
        ),
        (["--reference", "a", "--reference", "b", "--reference", "c"], "one or two files"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "http://127.0.0.1:9", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_users_own_cases_and_reference_are_taken(
    url: str, key_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {"type": "function", "function": {"name": "act", "parameters": {"type": "object"}}}
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}))
    folder = tmp_path / "schemas" / "TestIt"
    folder.mkdir(parents=True)
    (folder / "valid.jsonl").write_text('{"type": "object"}\n{"type": "object", "properties": {}}\n')
    (folder / "other.json").write_text('{"type": "object"}')
    sample = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    command = ["verify", url, "--api-key-file", key_file, "--suite", "schema,calls", "--json", "--max-tokens", "128"]
    command += ["--tools", str(tmp_path / "tools.json"), "--schemas", str(tmp_path / "schemas")]
    command += ["--samples", str(tmp_path / "samples.jsonl")]
    undrafted = ["--undrafted", url, "--undrafted-key-file", key_file]
    assert main([*command, *undrafted, "--reference", url, "--reference-key-file", key_file]) == 0
    suites = json.loads(capsys.readouterr().out)["suites"]
    assert suites["schema"]["n"] == 4 and "tool_call_f1" in suites["calls"]["figures"]
    question = {"id": "i", "question": [sample["messages"]], "function": []}
    (tmp_path / "BFCL_v4_irrelevance.json").write_text(json.dumps(question))
    bfcl = ["--bfcl", str(tmp_path), "--bfcl-categories", "irrelevance"]
    assert main([*command, *bfcl]) == 0
    assert json.loads(capsys.readouterr().out)["suites"]["calls"]["n"] == 2
    (tmp_path / "results.jsonl").write_text('{"data_index": 1, "status": "success", "finish_reason": "stop"}\n')
    reference = ["--reference", str(tmp_path / "results.jsonl")]
    assert main([*command, *reference]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "tool_call_f1" in result["suites"]["calls"]["figures"]
    assert "the reference has one run" in str(result["not_tested"])
    (tmp_path / "again.jsonl").write_text('{"data_index": 1, "status": "success", "finish_reason": "length"}\n')
    assert main([*command, *reference, "--reference", str(tmp_path / "again.jsonl")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "tool_call_f1 of the reference with itself" in result["suites"]["calls"]["figures"]
    assert "the reference" not in str(result["not_tested"])
    keep = ["--keep", str(tmp_path / "kept")]
    assert main([*command, *reference, *keep]) == 0
    assert main([*command, *reference, "--reference", str(tmp_path / "again.jsonl"), *keep]) == 2
    refusal = "URLs, models, formats, token limits, cases or references"
    assert refusal in capsys.readouterr().err
    for other in (["--format", "kimi_k25"], ["--max-tokens", "64"]):
        assert main([*command, *reference, *keep, *other]) == 2
        assert refusal in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--tools", "[]", "has no tools"),
        ("--tools", '{"tools": 3}', "tools must be a list"),
        ("--schemas", None, "has no valid.jsonl and no .json file"),
        ("--schemas", "{", "is not JSON"),
        ("--samples", "{}", "a sample is the body of a request"),
        ("--reference", "{}", "a result has data_index"),
        ("--bfcl", "{}", "--bfcl has no BFCL_v4_simple_python.json"),
    ],
)
def test_files_of_cases_that_hold_none_are_refused(
    option: str, content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    path = tmp_path if option == "--schemas" else file
    assert main(["verify", "http://127.0.0.1:9", option, str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "two keys", "schlüssel"])
def test_a_file_without_one_key_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text(content)
    assert main(["verify", "http://127.0.0.1:9", "--api-key-file", str(tmp_path / "key")]) == 2
    message = capsys.readouterr().err
    assert "key" in message and not (content and content in message)


@pytest.mark.parametrize("option", ["--runs", "--max-wait"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "1e99"])
def test_numbers_out_of_range_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["verify", "http://127.0.0.1:9", f"{option}={value}"])
    assert refusal.value.code == 2 and value in capsys.readouterr().err
