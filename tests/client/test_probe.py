"""The probe of a running server: ready is one that answers a constrained call and accepts drafts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail.client import probe

CALL = {"choices": [{"message": {"tool_calls": [{"function": {"arguments": '{"city": "Paris"}'}}]}}]}


def answer(accepted: int, drafted: int = 9) -> dict[str, Any]:
    return CALL | {"usage": {"speculation": {"steps": 3, "drafted": drafted, "accepted": accepted}}}


@contextmanager
def serving(reply: Any, status: int = 200) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A server that answers each chat completion with `reply`: its port, and the requests that it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body | {"key": self.headers.get("Authorization")})
            self._send(status, reply)

        def _send(self, code: int, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, requests
        finally:
            server.shutdown()
            thread.join()


def test_a_call_with_accepted_drafts_is_ready() -> None:
    with serving(answer(7)) as (port, requests):
        assert probe.probe(port, key="secret") == (None, ('{"city": "Paris"}',), 9, 7)
        assert probe.healthy(port)
    assert [each["key"] for each in requests] == ["Bearer secret"]
    assert (requests[0]["tool_choice"], requests[0]["dovetail"]) == ("required", {"strict": "schema"})


def test_a_drafter_that_never_drafts_is_not_ready() -> None:
    with serving(answer(0, 0)) as (port, requests):
        result = probe.probe(port)
    assert result.problem == "no draft was accepted (0 drafted): the drafter is off, or does not fit"
    assert len(requests) == 3  # one prompt may be too short to draft for


def test_without_drafter_a_call_is_enough() -> None:
    with serving(CALL | {"usage": {}}) as (port, _):
        assert probe.probe(port, drafts=False).problem is None


@pytest.mark.parametrize(
    ("reply", "status", "problem"),
    [
        ({"error": {"message": "no"}}, 500, 'status 500: {"error": {"message": "no"}}'),
        ({"choices": []}, 200, "IndexError"),
        ({"choices": [{"message": {"content": "hi"}}]}, 200, "KeyError"),
        ([], 200, "TypeError"),
        ({"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{"}}]}}]}, 200, "JSONDecodeError"),
        ({"choices": [{"message": {"tool_calls": [{"function": {"arguments": '{"city": 1}'}}]}}]}, 200, "do not fit"),
    ],
)
def test_an_answer_without_a_call_is_not_ready(reply: Any, status: int, problem: str) -> None:
    with serving(reply, status) as (port, _):
        result = probe.probe(port)
    assert result.problem is not None and problem in result.problem


def test_no_server_is_not_ready() -> None:
    with serving(answer(1)) as (port, _):
        pass
    assert (probe.probe(port).problem or "").startswith("the server does not answer: ")
    assert not probe.healthy(port)


def test_the_command_has_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("secret\n")
    with serving(answer(0)) as (port, requests):
        assert probe.main(["--port", str(port), "--key-file", str(tmp_path / "key")]) == 1
        assert probe.main(["--port", str(port), "--no-drafts"]) == 0
    assert [each["key"] for each in requests] == [*["Bearer secret"] * 3, None]
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["problem"] is None for line in lines] == [False, True]


def test_the_health_check_has_an_exit_code() -> None:
    with serving(answer(0)) as (port, requests):
        assert probe.main(["--port", str(port), "--health"]) == 0
    assert requests == [] and probe.main(["--port", str(port), "--health"]) == 1
