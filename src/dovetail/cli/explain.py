"""`dovetail explain`: what a recording of `serve --record`, or a request that is sent now, shows, in one screen."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.cli.files import endpoint_key
from dovetail.cli.terminal import CALL, CONTROL, PROBLEM, REASONING, visible
from dovetail.client.transport import HttpTransport, base_of
from dovetail.errors import InvalidRequest
from dovetail.events import CallEnd, CallStart, Defect, Event
from dovetail.gateway.observe.recording import RecordedLanes, RecordedPrompt, RecordedStep, Recording, Token, decode
from dovetail.inspect.asked_recording import Asker, api_of
from dovetail.inspect.recording_diff import Difference, differences
from dovetail.inspect.session import Session, sessions
from dovetail.inspect.verdict import Finding, verdict

T = TypeVar("T")

_DIFFERENT = 1  # the exit code, as in `diff`

STOOD = "green"
FORCED = "blue"
REFUSED = "red"
_HEADING = "bold underline"

#: Characters of the message that a conversation is called by.
_FIRST = 100
#: Columns of the table of a conversation, whose lines a narrower terminal wraps.
_TABLE = 180

#: Characters of a text, and items of a list, that one screen has.
_LONGEST = 1500
_MOST_ITEMS = 16

#: Seconds that a server has for one answer.
_TIMEOUT_S = 600.0

#: Nothing is loaded and no script runs, whatever the texts are.
_HTML = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>dovetail explain</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{stylesheet}
body {{ color: {foreground}; background: {background}; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; }}</style></head>
<body><pre>{code}</pre></body>
</html>
"""


def run(arguments: argparse.Namespace) -> int:
    if (arguments.session is None) == (arguments.recording is None):
        raise InvalidRequest("name either a file to explain, or a folder with --session DIR")
    if arguments.session is not None:
        return _show_sessions(sessions(Path(arguments.session)), as_json=arguments.json)
    source = _read(arguments.recording)
    if arguments.diff is not None:
        return _show_differences(
            differences(_shown(source, arguments), _shown(_read(arguments.diff), arguments)), arguments
        )
    recording = _shown(source, arguments)
    findings = verdict(recording)
    if arguments.json:
        print(msgspec.json.encode({"verdict": findings, "recording": recording}).decode())
        return 0
    if arguments.html is not None:
        _write_page(recording, findings, arguments.html)
        return 0
    _show(recording, findings, _Page(Console(highlight=False, soft_wrap=True), whole=arguments.all))
    return 0


def _read(path: str) -> Recording | dict[str, Any]:
    """The recording in a file, or the request. Raises `InvalidRequest`."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = msgspec.json.decode(data)
        if isinstance(body, dict) and "kind" not in body and api_of(body) is not None:
            return body
    return decode(data, path)


def _shown(source: Recording | dict[str, Any], arguments: argparse.Namespace) -> Recording:
    """The recording to show: a request is sent. Raises `InvalidRequest`."""
    if isinstance(source, Recording):
        return source
    if arguments.url is None:
        raise InvalidRequest("--url is missing: the server that gets the request, such as http://127.0.0.1:8000")
    return asyncio.run(_asked(source, arguments))


async def _asked(body: dict[str, Any], arguments: argparse.Namespace) -> Recording:
    base = base_of(arguments.url)
    transport = HttpTransport(base, endpoint_key(arguments.api_key_file, "OPENAI_API_KEY"), _TIMEOUT_S)
    try:
        return await Asker(transport, base).recording(body, arguments.api or api_of(body) or "chat")
    finally:
        await transport.close()


def _show(recording: Recording, findings: Sequence[Finding], page: _Page) -> None:
    page.head(recording)
    for finding in findings:
        page.line(("! " if finding.problem else "  ", PROBLEM), (finding.text, PROBLEM if finding.problem else "bold"))
    page.repairs(recording)
    if recording.lanes is not None:
        page.lanes(recording.lanes)
    if recording.prompt is not None:
        page.prompt(recording.prompt)
    page.pictures(recording)
    if recording.grammar is not None and page.whole:
        page.heading("grammar")
        page.line((recording.grammar, ""))
    page.steps(recording)
    page.messages(recording)


def _write_page(recording: Recording, findings: Sequence[Finding], path: str) -> None:
    """Write the whole recording as one HTML page, which loads nothing. Raises `InvalidRequest`."""
    console = Console(highlight=False, soft_wrap=True, record=True, file=io.StringIO(), force_terminal=True)
    _show(recording, findings, _Page(console, whole=True))
    try:
        Path(path).write_text(console.export_html(code_format=_HTML, inline_styles=False), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error


def _show_differences(shown: Sequence[Difference], arguments: argparse.Namespace) -> int:
    """Print the differences of two recordings. Returns the exit code."""
    if arguments.json:
        print(msgspec.json.encode({"equal": not shown, "differences": shown}).decode())
        return _DIFFERENT if shown else 0
    _Page(Console(highlight=False, soft_wrap=True), whole=arguments.all).differences(shown)
    return _DIFFERENT if shown else 0


def _show_sessions(shown: Sequence[Session], *, as_json: bool) -> int:
    """Print the turns of conversations, each with what was computed again, and why."""
    if as_json:
        print(msgspec.json.encode(shown).decode())
        return 0
    console = Console(highlight=False, soft_wrap=True, width=_TABLE)
    if not shown:
        console.print("no conversation of more than one turn")
    for session in shown:
        first = " ".join(session.first.split())
        console.print(Text(visible(first if len(first) <= _FIRST else f"{first[:_FIRST]} …"), "bold"))
        table = Table("turn", "answer", "prompt", "cached", "expected", "lost", "why", box=None, pad_edge=False)
        for number, turn in enumerate(session.turns, start=1):
            prefix = turn.prefix
            counts = [turn.prompt_tokens, turn.cached, *((prefix.expected, prefix.lost) if prefix else (None, None))]
            why = "" if prefix is None or prefix.cause is None else f"{prefix.explained} ({prefix.field or 'template'})"
            table.add_row(f"{number}", turn.id, *("" if n is None else f"{n:,}" for n in counts), Text(visible(why)))
        console.print(table)
        console.print(f"{session.lost:,} tokens were computed again")
        console.print()
    return 0


class _Page:
    """Prints a recording. `whole`: nothing is shortened."""

    def __init__(self, console: Console, *, whole: bool) -> None:
        self._console = console
        self.whole = whole

    def line(self, *pieces: tuple[str, str]) -> None:
        """Print texts in their styles, without control characters of theirs."""
        self._console.print(Text.assemble(*((visible(self._short(text)), style) for text, style in pieces)))

    def heading(self, name: str, more: str = "") -> None:
        self._console.print()
        self.line((name, _HEADING), (f"  {more}", "dim"))

    def head(self, recording: Recording) -> None:
        times = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in recording.times.items())
        self.line(
            (recording.id, "bold"), (f"  {recording.api} {recording.model or ''}  {recording.began}  {times}", "dim")
        )

    def differences(self, shown: Sequence[Difference]) -> None:
        if not shown:
            self.line(("equal, apart from ids and times", "bold"))
        for each in shown:
            self.line((each.where, "bold"))
            self.line(("- ", "red"), (each.first, "red"))
            self.line(("+ ", "green"), (each.second, "green"))

    def repairs(self, recording: Recording) -> None:
        if recording.repairs:
            self.heading("repairs")
        for repair in self._few(recording.repairs, "repairs"):
            again = "" if repair.new else "  (an earlier turn had it)"
            self.line((f"  {repair.where}: {repair.kind} ", PROBLEM), (f"{repair.detail}{again}", ""))

    def lanes(self, lanes: RecordedLanes) -> None:
        """The last prompt and this prompt around the place where they differ, with the first difference marked."""
        self.heading("where the prompt leaves the last one")
        shared = "".join(map(_spelled, lanes.shared))
        for name, tokens in (("last", lanes.last), ("this", lanes.this)):
            first, *rest = map(_spelled, tokens) if tokens else [""]
            pieces = [(f"  {name}  ", "bold"), (f"…{shared}", "dim"), (f"►{first}", REFUSED), ("".join(rest), "")]
            self.line(*pieces, (" …", "dim"))

    def prompt(self, prompt: RecordedPrompt) -> None:
        inside = ", ends inside reasoning" if prompt.in_reasoning else ""
        self.heading("prompt", f"{prompt.tokens:,} tokens{inside}")
        text = Text.assemble(*((visible(each.text), CONTROL if each.control else "") for each in prompt.segments or ()))
        most = len(text) if self.whole else _LONGEST
        if len(text) > most:
            cut = f"\n[… {len(text) - most:,} characters; --all shows them …]\n"
            text = Text.assemble(text[: most // 2], (cut, "dim"), text[len(text) - most // 2 :])
        self._console.print(text)

    def pictures(self, recording: Recording) -> None:
        if recording.pictures:
            self.heading("pictures")
        for number, picture in enumerate(recording.pictures, start=1):
            digest = f"  sha256 {picture.sha256}" if picture.sha256 else ""
            self.line((f"  {number}  {picture.media_type}  {picture.size:,} bytes{digest}", ""))

    def steps(self, recording: Recording) -> None:
        steps, options = recording.steps, recording.options
        if not steps:
            return
        # Of several steps at once, it is not known which tokens are drafts.
        single = options is not None and options.most_drafts is not None
        legend = "‹draft that stood›  «draft that stood, from the grammar»  the model's own  ~refused drafts~"
        self.heading("steps", legend if single else "several steps at once: whose the tokens are is not known")
        choices = len({step.choice for step in steps}) > 1
        for step in self._few(steps, "steps"):
            choice = f" choice {step.choice}" if choices else ""
            drafts = f"{step.accepted}/{step.drafted}" if step.drafted is not None else "?"
            head = f"  {step.at:9.3f} s{choice}  {drafts:>5}  "
            tokens = _tokens(step) if single else [("".join(map(_spelled, step.tokens)), "")]
            self.line((head, "dim"), *tokens, *_refused(step), *_marks(step.events), *_end(step), *self._allowed(step))

    def _allowed(self, step: RecordedStep) -> Iterator[tuple[str, str]]:
        if self.whole and step.allowed is not None:
            counts = " ".join("?" if count is None else f"{count}" for count in step.allowed)
            yield f"  allowed: {counts}", "dim"

    def messages(self, recording: Recording) -> None:
        for message in recording.messages:
            self.heading(f"message {message.choice}" if len(recording.messages) > 1 else "message")
            rows = [("reasoning", message.reasoning, REASONING), ("content", message.content, "")]
            rows += [("call", f"{call.id}  {call.name}({call.arguments})", CALL) for call in message.calls]
            for label, text, style in rows:
                if text:
                    self.line((f"  {label:<10}", "bold"), (text, style))

    def _short(self, text: str) -> str:
        if self.whole or len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST // 2]} [… {len(text) - _LONGEST:,} characters …] {text[-_LONGEST // 2 :]}"

    def _few(self, items: Sequence[T], name: str) -> Iterator[T]:
        """`items`, or the first and the last ones and a line between them."""
        if self.whole or len(items) <= _MOST_ITEMS:
            yield from items
            return
        half = _MOST_ITEMS // 2
        yield from items[:half]
        self.line((f"  [… {len(items) - _MOST_ITEMS:,} {name}; --all shows them …]", "dim"))
        yield from items[-half:]


def _tokens(step: RecordedStep) -> Iterator[tuple[str, str]]:
    """The tokens of a step, each marked and coloured by who made it."""
    for number, token in enumerate(step.tokens):
        text = _spelled(token)
        if number < min(step.forced, step.accepted):
            yield f"«{text}»", CONTROL if token.control else FORCED
        elif number < step.accepted:
            yield f"‹{text}›", CONTROL if token.control else STOOD
        else:
            yield text, CONTROL if token.control else ""


def _refused(step: RecordedStep) -> Iterator[tuple[str, str]]:
    """The drafts that did not stand."""
    if step.refused:
        by = {"grammar": " by the grammar", "end": " after the end"}.get(step.refused_by or "", "")
        yield f" ~{''.join(map(_spelled, step.refused))}~{by}", REFUSED


def _spelled(token: Token) -> str:
    if token.id is None:
        return "·"
    return token.text.replace("\n", "⏎").replace("\t", "⇥") or "…"


def _marks(events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """The events of a step other than pieces of text."""
    for event in events:
        match event:
            case CallStart(index, _, name):
                yield f"  call {index + 1} {name}", CALL
            case CallEnd(index):
                yield f"  end of call {index + 1}", CALL
            case Defect(kind, detail):
                yield f"  {kind} {detail}".rstrip(), PROBLEM
            case _:
                pass  # pieces of text


def _end(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for guard in step.guards:
        yield f"  guard: {guard}", PROBLEM
    if step.inserted:
        yield f"  the last {step.inserted} inserted", PROBLEM
    for check in step.checks:
        if check.fault is not None:
            yield f"  {check.fault}", PROBLEM
    if step.finish is not None:
        yield f"  {step.finish}", "bold"
