"""The page `/inspect` in a real browser, over recordings of the demo model (browser.sh gets one).

Whatever a test does, an error in the console, an exception or a dialog fails it.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Reasoning
from dovetail.gateway.observe.recording import (
    PromptSegment,
    RecordedCall,
    RecordedError,
    RecordedLanes,
    RecordedLogprob,
    RecordedMessage,
    RecordedPicture,
    RecordedPrompt,
    RecordedRepair,
    RecordedTokenizer,
    Recording,
    Token,
)
from dovetail.gateway.observe.recording_folder import RecordingOptions
from dovetail.gateway.turn.prefix import Prefix
from tests.demo_server import demo_server
from tests.gateway.test_pictures_seen import RED
from tests.inspect.files import recording, step, with_call, write

#: The folder that browser.sh has filled.
TOOLS = Path(os.environ.get("DOVETAIL_BROWSER_TOOLS") or "/nonexistent")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not TOOLS.is_dir(), reason="no browser: see browser.sh, CONTRIBUTING.md"),
]
#: Milliseconds that the page has for anything; what is waited for is there much earlier.
PATIENCE = 20_000
KEY = "the-operators-key"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK = {
    "model": "demo",
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 2,
    "messages": [{"role": "user", "content": "Please get the weather for city Paris."}],
    "tools": [WEATHER],
}
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\u202ereversed\u2066 \x00\x07\x1b[31m "
    "javascript:window.hacked=1 \"'`${window.hacked = 1} __proto__ مرحبا"
)
LONG_WORD = "w" * 1_000_000
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sys.path.append(str(TOOLS / "python"))
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        # Without its sandbox, which root and containers do not have.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with demo_server(RecordingOptions(folder)) as address:
        yield address


@pytest.fixture
def opened(browser: Any, url: str) -> Iterator[Opened]:
    """Opens a page of the inspector. `allowed`: a pattern of messages in the console that are not errors."""
    with ExitStack() as stack:

        def open_page(path: str = "#/", *, at: str = url, allowed: str = "(?!)", **context: Any) -> Any:
            context = {"viewport": {"width": 1280, "height": 900}} | context
            page = browser.new_context(**context).new_page()
            page.set_default_timeout(PATIENCE)
            faults: list[str] = []
            page.on("console", lambda message: message.type in ("error", "warning") and faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            page.on("request", lambda request: request.url.startswith(at) or faults.append(f"loads {request.url}"))

            def check() -> None:
                assert page.evaluate("window.hacked") is None
                page.context.close()
                assert not [fault for fault in faults if not re.search(allowed, fault)]

            stack.callback(check)
            page.goto(f"{at}/inspect{path}")
            return page

        yield open_page


@pytest.fixture(scope="module")
def answered(url: str, folder: Path) -> str:
    """The name of the recording of a request that the demo model has answered."""
    id = httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=60).json()["id"]
    deadline = time.monotonic() + 60
    while not (files := [*folder.glob(f"*{id}.recording.json")]) and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread of the server writes it
    return files[0].name.removesuffix(".recording.json")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server over recordings that the test writes: its address, and the folder."""
    folder = tmp_path_factory.mktemp("shelf")
    with demo_server(RecordingOptions(folder)) as address:
        yield address, folder


def texts(page: Any, selector: str) -> list[str]:
    shown: list[str] = page.locator(selector).all_inner_texts()
    return shown


def names(page: Any) -> list[str]:
    """The recordings in the list."""
    rows: list[str] = page.eval_on_selector_all("tbody tr", "rows => rows.map(row => row.dataset.name)")
    return rows


def fill_shelf(folder: Path) -> None:
    write(folder, "a", recording(), 1)
    write(folder, "b", with_call(), 2)
    write(folder, "c", recording(model="other", steps=(), messages=(), error=RecordedError("InvalidRequest", "no")), 3)
    write(folder, "d", b'{"kind": "dovetail recording", "vers', 4)


# The list.


def test_the_list_filters_and_opens(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    fill_shelf(folder)
    page = opened(at=address)
    page.wait_for_selector("tbody tr")
    assert names(page) == ["d", "c", "b", "a"]
    assert "cut off" in texts(page, "tr[data-name=d]")[0]
    assert texts(page, "tr[data-name=b] .badge") == ["tool_calls", "stray_marker", "schema_mismatch"]
    for choose, expected in (
        (lambda: page.fill("#text", "other"), ["c"]),  # the model
        (lambda: page.fill("#text", "invalidrequest"), ["c"]),
        (lambda: page.fill("#text", "look_up"), ["b"]),
        (lambda: page.fill("#text", ""), ["d", "c", "b", "a"]),
        (lambda: page.check("#defects"), ["d", "b"]),
        (lambda: page.uncheck("#defects"), ["d", "c", "b", "a"]),
        (lambda: page.fill("#text", "CMPL-2"), ["b"]),
        (lambda: page.fill("#text", "stop"), ["a"]),
    ):
        choose()
        page.wait_for_function(
            "all => `${[...document.querySelectorAll('tbody tr')].map(row => row.dataset.name)}` === `${all}`",
            arg=expected,
        )
    assert page.url.endswith("#/?text=stop")  # an address that can be sent
    page.click("tbody td.figure")
    page.wait_for_selector("h1.id")
    page.go_back()
    page.wait_for_selector("tr[data-name=a]")
    assert names(page) == ["a"]


def test_the_list_is_used_with_the_keyboard_alone(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    fill_shelf(folder)
    page = opened(at=address)
    page.focus("tr[data-name=d] a")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_selector("h1.id")
    assert texts(page, "h1.id") == ["chatcmpl-2"]


def test_new_requests_appear_by_themselves(opened: Opened, url: str, answered: str) -> None:
    page = opened()
    page.wait_for_selector(f"tr[data-name='{answered}']")
    before = names(page)
    httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=60)
    page.wait_for_selector("tr.fresh")
    assert names(page)[1:] == before
    assert "new request" in texts(page, "#status")[0]


def test_older_requests_come_when_asked_for(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    fill_shelf(folder)
    for number in range(60):
        write(folder, f"old{number:02}", recording(id=f"old{number:02}"), -number - 1)
    page = opened(at=address)
    page.wait_for_selector("tbody tr:nth-child(50)")
    assert len(names(page)) == 50
    page.click("text=Older requests")
    page.wait_for_selector("tr[data-name=old59]")
    assert len(names(page)) == 64 and not page.is_visible("text=Older requests")
    for path in folder.glob("old*"):
        path.unlink()


# One request.


def test_a_request_shows_prompt_tokens_and_message(opened: Opened, answered: str) -> None:
    page = opened(f"#/request/{answered}")
    page.wait_for_selector(".token .text")
    assert "the model called get_weather" in texts(page, ".verdict")[0]
    assert texts(page, ".turn .role") == ["system", "user", "assistant"]
    assert "<|im_user|>" in texts(page, ".control-token")
    shown = "".join(texts(page, ".lane-row .text")).replace("␣", " ")
    assert "The user wants get_weather." in shown and '{"city": "Paris"}' in shown
    assert page.locator(".lane-row .token.forced, .lane-row .token.draft").count() > 0
    assert any("call 1 get_weather" in mark for mark in texts(page, ".lane-row .mark"))
    message = texts(page, "aside")[0]
    assert "The user wants get_weather." in message and '"city": "Paris"' in message


def test_tokens_are_walked_with_the_keyboard(opened: Opened, answered: str) -> None:
    page = opened(f"#/request/{answered}")
    page.focus(".lanes")

    def place(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        where: str = page.locator(".details dd").first.inner_text()
        active = page.get_attribute(".lanes", "aria-activedescendant")
        assert page.get_attribute(f"#{active}", "aria-selected") == "true"
        assert page.locator("[aria-selected=true]").count() == 1
        return where.split(" of ")[0]

    assert place("ArrowRight", "ArrowRight") == "3"
    assert place("ArrowLeft") == "2"
    assert int(place("Control+ArrowRight")) > 2
    last = int(place("End"))
    assert int(place("ArrowRight")) == last and place("Home", "ArrowLeft") == "1"
    assert int(place("ArrowDown")) > 1 and place("ArrowUp") == "1"
    place("e")
    assert "call" in texts(page, ".details")[0]
    assert page.get_attribute(".details", "aria-live") == "polite"
    assert int(place("PageDown", "PageDown")) > 1 and place("Home", "PageUp") == "1"


def test_a_hovered_token_shows_its_probability_and_the_strip_leads_to_a_step(opened: Opened, answered: str) -> None:
    page = opened(f"#/request/{answered}")
    page.hover("#token-2")
    assert re.search(r"probability\s+\d", texts(page, ".details")[0]) and "likeliest" in texts(page, ".details")[0]
    page.hover("h1.id")
    assert texts(page, ".details dd")[0].startswith("1 of")
    box = page.locator(".strip").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 20)
    step_number, steps = re.search(r"step\s+(\d+) of (\d+)", texts(page, ".details")[0]).groups()
    assert step_number == steps
    assert page.get_attribute(".strip", "aria-label").startswith("Time per step: ")


def test_refused_drafts_masks_states_and_choices_are_shown(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    first = step(
        "Hm", "</think>", " yes",
        tokens=(Token(1, "Hm"), Token(2, "</think>", True), Token(3, " yes")),
        accepted=2, forced=1, drafted=4, refused=(Token(8, " no"), Token(9, "!")), refused_by="grammar",
        allowed=(1, 1, 7), events=(Reasoning("Hm"), Content(" yes")),
        logprobs=(RecordedLogprob(0.0), RecordedLogprob(-0.1), RecordedLogprob(-0.6931, ((" no", -1.0),))),
    )  # fmt: skip
    call = (CallStart(0, "i", "f"), CallArguments(0, "x"), CallEnd(0))
    second = step("f", "x", finish="length", events=call, accepted=0)
    other = step("y", choice=1, finish="stop", drafted=None, accepted=0)
    write(folder, "lanes", recording(steps=(first, second, other)), 5)
    page = opened("#/request/lanes", at=address)
    page.wait_for_selector("#token-4")
    kinds = page.eval_on_selector_all(".lane-row .token", "cells => cells.map(cell => cell.className)")
    assert [kind.split()[1:3] for kind in kinds] == [
        ["forced", "reasoning"], ["draft", "markup"], ["model", "content"], ["model", "markup"], ["model", "call"]
    ]  # fmt: skip
    assert texts(page, ".lane-row .refused") == [" no!", "×3"]
    page.click("#token-2")
    details = texts(page, ".details")[0]
    assert re.search(r"refused by the grammar\s+no · !", details) and re.search(r"grammar allowed\s+7 tokens", details)
    assert re.search(r"probability\s+50.0 %", details)
    assert "■ length" in texts(page, ".lane-row .mark")[-1]
    page.select_option("#choice", "1")
    page.wait_for_function("() => document.querySelectorAll('.lane-row .token').length === 1")
    assert texts(page, ".lane-row .text") == ["y"]


def test_20000_tokens_are_few_elements(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    count = 20_000
    steps = tuple(step(f" word{number:05}", ",", at=number / 100, finish=None) for number in range(count // 2))
    write(folder, "long", recording(steps=steps), 6)
    page = opened("#/request/long", at=address)
    page.wait_for_selector("#token-0")
    page.focus(".lanes")
    page.keyboard.press("End")
    page.wait_for_selector(f"#token-{count - 1}[aria-selected=true]")
    for share in (0, 0.3, 0.7, 1):
        page.evaluate(
            "share => { const e = document.querySelector('.lanes'); e.scrollTop = share * e.scrollHeight }", share
        )
        page.wait_for_function(
            "share => { const cells = [...document.querySelectorAll('.lane-row .token')];"
            "const all = cells.map(cell => +cell.dataset.token / 20000);"
            "return Math.min(...all) <= share && share - 0.02 <= Math.max(...all) }",
            arg=share,
        )
        assert page.locator(".lane-row .token").count() < 600
    assert page.evaluate("document.querySelectorAll('*').length") < 4000


@pytest.mark.parametrize(
    ("name", "words"), [("cut", "perhaps cut off"), ("gone", "there is no recording"), ("old", "version 0")]
)
def test_a_recording_that_cannot_be_read_says_why(
    opened: Opened, shelf: tuple[str, Path], name: str, words: str
) -> None:
    address, folder = shelf
    write(folder, "cut", msgspec.json.encode(recording())[:-20], 1)
    write(folder, "old", msgspec.json.encode(recording(version=0)), 1)
    page = opened(f"#/request/{name}", at=address, allowed="status of 40[04]")
    assert words in page.inner_text("[role=alert]")


def test_a_recording_of_another_tokenizer_is_shown_with_a_note(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    write(folder, "foreign", recording(tokenizer=RecordedTokenizer("00" * 16, 5)), 1)
    page = opened("#/request/foreign", at=address)
    page.wait_for_selector("#token-0")
    assert "another tokenizer" in page.inner_text(".note")
    write(folder, "own", recording(), 1)
    page.goto(f"{address}/inspect#/request/own")
    page.wait_for_function("() => !document.querySelector('.note') && document.querySelector('#token-0')")


def hostile() -> Recording:
    """A recording with hostile text in every field that has any."""
    text, long = HOSTILE, HOSTILE + LONG_WORD
    call = Call(text, text, long)
    events = (Content(long), CallStart(0, text, text), CallArguments(0, text), CallEnd(0), Defect(text, text))
    return recording(
        id=text, request_id=text, api=text, model=text, began=text,
        request=msgspec.Raw(msgspec.json.encode({text: [long]})),
        repairs=(RecordedRepair(text, text, text, True),),
        prompt=RecordedPrompt(2, True, (PromptSegment(text, True, 1), PromptSegment(long, False, 1)), (1, 2)),
        grammar=long,
        steps=(step(text, long, events=events, checks=(RecordedCall(text, text),), finish=text, stop_string=text,
                    refused=(Token(1, text),), logprobs=(RecordedLogprob(-1.0, ((text, -1.0),)),) * 2),),
        messages=(RecordedMessage(0, long, long, (call,)),), error=RecordedError(text, text), left_out=(text,),
    )  # fmt: skip


def test_a_picture_is_shown_if_its_file_was_recorded(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    pictures = (
        RecordedPicture("ab" * 32, "image/png", len(RED), RED),
        RecordedPicture("cd" * 32, "image/png", 12_345),
        RecordedPicture("ef" * 32, "text/html", 3, b"<b>"),
    )
    write(folder, "pictures", recording(pictures=pictures), 8)
    page = opened("#/request/pictures", at=address)
    page.wait_for_selector(".pictures img")
    (width,) = page.eval_on_selector_all(".pictures img", "images => images.map(image => image.naturalWidth)")
    assert width == 1
    assert texts(page, ".pictures figcaption") == [
        f"1: image/png, {len(RED)} bytes sha256 abababababab",
        "2: image/png, 12,345 bytes sha256 cdcdcdcdcdcd",
        "3: text/html, 3 bytes sha256 efefefefefef",
    ]
    (folder / "pictures.recording.json").unlink()


def test_the_last_prompt_and_this_one_are_lanes(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    prefix = Prefix(41_210, 212, 40_998, "date", "messages[0].content")
    shared, last, this = (
        tuple(Token(number, text) for number, text in enumerate(each))
        for each in (("Today", " is", " 2026-11-"), ("28", "<b>", "\nBe"), ("29", ".", "\nBe", " brief"))
    )
    write(folder, "lanes", recording(prefix=prefix, lanes=RecordedLanes(shared, last, this)), 8)
    page = opened("#/request/lanes", at=address)
    page.wait_for_selector(".prefix-lanes")
    assert texts(page, ".prefix-lanes td") == ["…Today is 2026-11-28<b>⏎Be…", "…Today is 2026-11-29.⏎Be brief…"]
    assert texts(page, ".prefix-lanes mark") == ["28", "29"]
    summary = page.text_content("details:has(.prefix-lanes) summary")
    assert summary.endswith("212 of 41,210 tokens kept, date · messages[0].content")
    page.evaluate((TOOLS / "node_modules" / "axe-core" / "axe.min.js").read_text())
    found = page.evaluate("axe.run('.prefix-lanes')")["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    (folder / "lanes.recording.json").unlink()


def test_hostile_text_in_every_field_is_shown_as_text(opened: Opened, shelf: tuple[str, Path]) -> None:
    address, folder = shelf
    write(folder, "hostile", hostile(), 7)
    page = opened(at=address)
    page.wait_for_selector("tr[data-name=hostile]")
    assert "<script>window.hacked" in page.text_content("tbody") and "\u202e" not in page.text_content("tbody")
    page.click("tr[data-name=hostile] a")
    page.wait_for_selector("#token-0")
    page.evaluate(OPEN_ALL)
    page.click("#token-1")
    for selector in (".verdict", ".prompt", "aside", ".details", "#main"):
        shown = page.text_content(selector)  # also of what is out of sight
        assert "<script>window.hacked" in shown and "<U+202E>" in shown
        assert not re.search("[\u202e\u2066\x00\x07\x1b]", shown)
    assert page.locator("main script, main img").count() == 0
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1280  # a word of a million letters moves nothing
    (folder / "hostile.recording.json").unlink()


# Keys.


def test_a_key_is_asked_for_and_stays_in_the_tab(opened: Opened, tmp_path: Path) -> None:
    write(tmp_path, "a", recording(), 1)
    with demo_server(RecordingOptions(tmp_path), KEY) as address:
        page = opened(at=address, allowed="status of 401")
        page.wait_for_selector("dialog")
        assert page.locator("tbody tr").count() == 0
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("dialog .problem >> text=the API key is wrong")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        page.wait_for_selector("tr[data-name=a]")
        page.reload()
        page.wait_for_selector("tr[data-name=a]")
        assert KEY not in page.url + page.content()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.goto("about:blank")  # before the server ends


# Everybody.


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", ["list", "request"])
def test_axe_finds_nothing_serious(opened: Opened, answered: str, scheme: str, where: str) -> None:
    path = {"list": "#/", "request": f"#/request/{answered}"}[where]
    page = opened(path, color_scheme=scheme)
    page.wait_for_selector({"list": "tbody tr", "request": "#token-0"}[where])
    if where == "request":
        page.evaluate(OPEN_ALL)
    page.evaluate((TOOLS / "node_modules" / "axe-core" / "axe.min.js").read_text())
    results = page.evaluate("axe.run()")
    serious = [
        (each["id"], node["html"], node["failureSummary"])
        for each in results["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
    assert results["passes"] and not serious


def test_the_modules_have_the_types_that_they_say() -> None:
    config = Path(__file__).parent / "tsconfig.json"
    check = subprocess.run([TOOLS / "node_modules/.bin/tsc", "-p", config], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout
