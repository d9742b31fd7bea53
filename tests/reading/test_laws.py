"""Laws 1 to 6 of reading, for every registered format: see docs/reading.md."""

from __future__ import annotations

import gc
import itertools
import json
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import ReaderMisuse
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Event, Message, Reasoning
from dovetail.reading import MALFORMED, CallReader, prose
from dovetail.reading.defects import KINDS
from dovetail.reading.parameter_reader import ParameterReader
from dovetail.reading.prose import FARTHEST_CALL
from dovetail.reading.reader import FARTHEST
from dovetail.tokens import Segment, Tokenizer
from tests.examples import examples, proof_but
from tests.reading import families
from tests.reading.families import TOOLS, cut, meaning, opened, reasons, stream, stream_ids

#: Examples for each property and family: there are some twenty of either.
few = examples(20, fuzz=400)
families_all = pytest.mark.parametrize("name", families.NAMES)
#: The families that read reasoning, content and sections of calls in the same way.
SHARED_WALK = [name for name in families.NAMES if families.format_of(name).reader_type._read is CallReader._read]
stops = st.sampled_from(("stop", "length"))


# -- what is written reads back ---------------------------------------------------------------------------------------


@families_all
@examples(40, fuzz=10_000)
@given(st.data(), st.booleans())
def test_written_messages_are_read_back(name: str, data: st.DataObject, thinking: bool) -> None:
    fmt = families.format_of(name)
    message = data.draw(families.messages(name, reasons=reasons(name, thinking)))
    # A new line before ordinary text that opens a call is layout, and so are new lines where markup may open an answer.
    assume(not (message.content.endswith("\n") and message.calls and families.opens_in_text(name)))
    assume(message.content.strip("\n") or not (message.content and message.calls and families.opens_answers(name)))
    for prompt in fmt.forms(message, thinking=thinking):
        read = fmt.parse(prompt.text, TOOLS, thinking=opened(name, thinking))
        assert (meaning(read), read.defects) == (meaning(message), ())


@families_all
@few
@given(st.data(), st.booleans(), families.cuts)
def test_ids_read_back_in_any_groups(name: str, data: st.DataObject, thinking: bool, places: list[int]) -> None:
    """Texts that spell control tokens in ordinary tokens stay texts (law 5)."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    message = data.draw(families.messages(name, reasons=reasons(name, thinking), ids=True))
    ids = data.draw(st.sampled_from([*fmt.forms(message, thinking=thinking)])).ids(tokenizer)
    for groups in ([ids], cut(ids, places), [[token] for token in ids]):
        read = dovetail.fold(stream_ids(name, groups, tokenizer, thinking=opened(name, thinking)))
        assert (meaning(read), read.defects) == (meaning(message), ())


# -- law 1: splits do not matter --------------------------------------------------------------------------------------


@families_all
@few
@given(st.data(), families.cuts, st.booleans(), stops)
def test_splits_do_not_matter(name: str, data: st.DataObject, places: list[int], thinking: bool, reason: str) -> None:
    text = data.draw(families.outputs(name))
    whole = dovetail.fold(stream(name, [text], reason, thinking=thinking))
    assert dovetail.fold(stream(name, cut(text, places), reason, thinking=thinking)) == whole
    assert dovetail.fold(stream(name, list(text), reason, thinking=thinking)) == whole
    assert {defect.kind for defect in whole.defects} <= KINDS.keys()
    if reason == "stop" and (whole.content or whole.calls):  # without a prompt, an answer of reasoning alone is content
        assert families.format_of(name).parse(text, TOOLS, thinking=thinking) == whole


@families_all
@few
@given(st.data(), families.cuts)
def test_groups_of_ids_do_not_matter(name: str, data: st.DataObject, places: list[int]) -> None:
    """For any ids, those of no token and those that are half a character among them."""
    ids, tokenizer = data.draw(families.id_outputs(name)), families.tokenizer_of(name)
    whole = dovetail.fold(stream_ids(name, [ids], tokenizer))
    assert dovetail.fold(stream_ids(name, cut(ids, places), tokenizer)) == whole
    assert dovetail.fold(stream_ids(name, [[token] for token in ids], tokenizer)) == whole
    assert {defect.kind for defect in whole.defects} <= KINDS.keys()


@families_all
@few
@given(st.data(), families.cuts)
def test_text_and_ids_may_take_turns(name: str, data: st.DataObject, places: list[int]) -> None:
    """A marker does not begin in one and end in the other; both kinds of pieces may be cut anywhere."""
    tokenizer = families.tokenizer_of(name)
    turns = data.draw(st.lists(st.tuples(families.scraps(name), families.id_outputs(name)), max_size=4))

    def read(cut_text: Callable[[str], list[str]], cut_ids: Callable[[list[int]], list[list[int]]]) -> Message:
        reader = families.format_of(name).reader(TOOLS, tokenizer=tokenizer)
        events: list[Event] = []
        for text, ids in turns:
            for piece in cut_text(text):
                events += reader.feed(piece)
            for group in cut_ids(ids):
                events += reader.feed("", group)
        return dovetail.fold(events + reader.finish())

    whole = read(lambda text: [text], lambda ids: [ids])
    assert read(lambda text: cut(text, places), lambda ids: cut(ids, places)) == whole
    assert read(list, lambda ids: [[token] for token in ids]) == whole


@families_all
def test_half_a_marker_before_ids_is_text(name: str) -> None:
    reader = families.format_of(name).reader(tokenizer=families.tokenizer_of(name), thinking=False)
    half = families.controls(name)[0][:-1]
    events = [*reader.feed("so " + half), *reader.feed("", families.tokenizer_of(name).encode("> there"))]
    assert dovetail.fold([*events, *reader.finish()]).content == f"so {half}> there"


# -- law 2: linear and live -------------------------------------------------------------------------------------------


def opening(name: str) -> str:
    """An output up to the inside of a string argument."""
    message = Message(calls=(Call("functions.edit_file:0", "edit_file", '{"path": "VALUE"}'),))
    return families.format_of(name).write(message, thinking=False).text.partition("VALUE")[0]


def shown(events: list[Event]) -> int:
    """How many characters of output the events show, each JSON escape being one."""
    texts = "".join(e.text for e in events if isinstance(e, Content | Reasoning))
    fragments = "".join(e.fragment for e in events if isinstance(e, CallArguments))
    return len(texts) + len(re.sub(r"\\(?:u....|.)", "x", fragments))


@families_all
@few
@given(st.data())
def test_string_arguments_stream_as_they_come(name: str, data: st.DataObject) -> None:
    known = families.markers(name)
    text = data.draw(
        st.lists(
            st.tuples(st.sampled_from(known), st.integers(1, 60)).map(lambda c: c[0][: min(c[1], len(c[0]) - 1)])
            | st.text(alphabet="abc <>/|=\n", max_size=12),
            max_size=8,
        ).map(lambda parts: re.sub(r"[\"'\\]", "", "".join(parts)))
    )
    start = opening(name)
    # A closing tag may be misspelled: see `value_ends.REST`.
    longest = max(map(len, known)) + 32 * issubclass(families.format_of(name).reader_type, ParameterReader)
    assume(not any(len(m.strip()) > 2 and (start + text).count(m.strip()) > start.count(m.strip()) for m in known))
    reader = families.format_of(name).reader(TOOLS, thinking=False)
    events = reader.feed(start)
    base = shown(events)
    for fed, character in enumerate(text, start=1):
        events += reader.feed(character)
        assert fed - (shown(events) - base) < longest


class _Counted:
    """A pattern (or the `re` or `json` module) that counts the characters it is given."""

    def __init__(self, inner: Any, work: _Work) -> None:
        self._inner, self._work = inner, work

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute) or name == "escape":
            return attribute

        def counted(*args: Any, **options: Any) -> Any:
            result = attribute(*args, **options)
            if isinstance(result, re.Pattern):
                return _Counted(result, self._work)
            text = next((a for a in reversed(args) if isinstance(a, str)), "")
            start = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
            end = result.end() if isinstance(result, re.Match) else len(text)
            if result is None and name in ("match", "fullmatch"):  # it fails where it stands
                end = min(end, start + FARTHEST)
            self._work.characters += end - start
            return result

        return counted


class _Work:
    """What reading costs, without a clock: characters that patterns pass over and bytes that are copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.characters = 0
        for module in _reading_modules():
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern) or value is re or value is json:
                    monkeypatch.setattr(module, name, _Counted(value, self))
                elif isinstance(getattr(value, "__self__", None), re.Pattern):
                    monkeypatch.setattr(module, name, getattr(_Counted(value.__self__, self), value.__name__))

    def of(self, name: str, pieces: list[str], **options: Any) -> int:
        self.characters = copied = 0
        machine = families.format_of(name).reader(TOOLS, thinking=False, **options)
        for piece in pieces:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            machine.feed(piece)
            copied += tracemalloc.get_traced_memory()[1] - before
        machine.finish()
        return self.characters + copied


def _reading_modules() -> list[ModuleType]:
    return [m for name, m in sys.modules.items() if re.match(r"dovetail\.(reading|formats)\b", name)]


def _forget() -> None:
    for module in _reading_modules():
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and not isinstance(value, type):
                value.cache_clear()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Work]:
    counting = _Work(monkeypatch)
    # The outputs are many times as long as what a trial may see; else what each trial sees grows with them.
    monkeypatch.setattr(prose, "FARTHEST_CALL", 256)
    _forget()  # what was compiled without counting
    gc.collect()
    gc.disable()  # what a collection frees while a reader runs would be taken from what the reader copied
    tracemalloc.start()
    yield counting
    tracemalloc.stop()
    gc.enable()
    _forget()


def _in_value(value: str) -> Callable[[str, int], str]:
    return lambda name, size: opening(name) + _filled(value, size)


def _filled(bit: str, size: int) -> str:
    return bit * (size // len(bit))


SHAPES: dict[str, Callable[[str, int], str]] = {
    "content": lambda name, size: _filled("some words, ", size),
    "brackets": lambda name, size: _filled("<", size),
    "newlines": lambda name, size: _filled("\n", size),
    "string argument": _in_value("words <b> & {more} "),
    "brackets in an argument": _in_value("<"),
    "newlines in an argument": _in_value("\n"),
    "number": lambda name, size: _before_number(name) + _filled("12", size),
    "array": lambda name, size: _before_number(name) + _filled("[[1], ", size),
    "endless header": lambda name, size: opening(name).partition("edit_file")[0] + _filled("name ", size),
    "markers": lambda name, size: _filled("".join(families.markers(name)), size),
    "halves of markers": lambda name, size: _filled("".join(m[:-1] for m in families.markers(name)), size),
    "halves in an argument": lambda name, size: (
        opening(name) + _filled("".join(m[:-1] for m in families.markers(name) if len(m) > 2), size)
    ),
    "openers": lambda name, size: _filled(_openers(name)[0], size),
    "nested markers": lambda name, size: _filled(opening(name).partition("path")[0], size),
    "calls": lambda name, size: _filled(families.format_of(name).write(_ONE_CALL, thinking=False).text, size),
}
_ONE_CALL = Message(calls=(Call("functions.ping:0", "ping", "{}"),))


def _openers(name: str) -> tuple[str, ...]:
    """What opens the family's calls; its first control token in families of messages."""
    return tuple(o.strip() for o in getattr(families.format_of(name).reader_type, "openers", ())) or families.controls(
        name
    )


def _before_number(name: str) -> str:
    message = Message(calls=(Call("functions.edit_file:0", "edit_file", '{"lines": [77777]}'),))
    return families.format_of(name).write(message, thinking=False).text.partition("77777")[0]


#: The shapes in which a family's own markers decide. Each looks ahead some way, so that short outputs do not show what
#: a long one costs.
OF_MARKERS = (
    *("endless header", "markers", "halves of markers", "halves in an argument", "openers", "nested markers", "calls"),
)
#: The same, where a marker looks ahead farther.
FAR = {
    *(("markers", name) for name in ("deepseek_v32", "gemma4", "harmony", "pythonic", "solar_open")),
    *(("halves in an argument", name) for name in ("deepseek_v32", "gigachat35", "kimi_k3", "minicpm5")),
    ("halves of markers", "deepseek_v41"),
    *(("openers", name) for name in ("kimi_k2", "lfm2", "pythonic")),
    *(
        ("nested markers", name)
        for name in ("deepseek_v32", "gigachat35", "glm45", "minicpm5", "lfm2", "section_key_tags")
    ),
    *(("calls", name) for name in ("mistral", "lfm2")),
}


#: What takes longest, and shapes beside which another one looks ahead as far.
TWINS = (
    *("nested markers", "calls", "halves in an argument", "halves of markers"),
    *("newlines", "newlines in an argument", "array", "openers"),
)


def shapes() -> Iterator[Any]:
    """One family for each reader and half of the shapes in `.ci/run`; the others are proofs."""
    for shape, name in itertools.product(SHAPES, families.NAMES):
        in_ci = (shape, name) in (("markers", "harmony"), ("openers", "hermes"), ("openers", "deepseek_v31")) or (
            name in families.leading() and shape not in TWINS and (shape, name) not in FAR
        )
        yield pytest.param(name, shape, marks=() if in_ci else pytest.mark.proof)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), list(shapes()))
def test_cost_is_linear(name: str, shape: str, work: _Work) -> None:
    """Four times the output is about four times the work, in pieces of 4 characters and in one."""
    size = 32_000 if (shape, name) in FAR else 8000 if shape in OF_MARKERS else 2000
    short, long = SHAPES[shape](name, size), SHAPES[shape](name, 4 * size)
    for pieces in (lambda text: [text[i : i + 4] for i in range(0, len(text), 4)], lambda text: [text]):
        once, four_times = work.of(name, pieces(short)), work.of(name, pieces(long))
        assert four_times <= 5.5 * once + 20_000, (once, four_times)


_SECTION = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>\n"


@pytest.mark.parametrize(
    ("section", "last"),
    [
        (_SECTION.format("nope", "<parameter=a>\n1\n</parameter>\n"), "The end."),
        (_SECTION.format("ping", ""), _SECTION.format("ping", "words ") + "The end."),
    ],
)
def test_calls_that_become_text_are_read_once(section: str, last: str, work: _Work) -> None:
    """Not from each opener again."""
    texts = [section * count + last for count in (10, 40)]
    options = {"thinking": False, "on_malformed_call": "text"}
    assert dovetail.fold(stream("qwen3_coder", [texts[1]], **options)) == Message(texts[1])
    once, four_times = (work.of("qwen3_coder", [text], on_malformed_call="text") for text in texts)
    assert four_times <= 5.5 * once + 20_000, (once, four_times)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(families.leading()))
def test_openers_without_calls_are_text(name: str) -> None:
    """25 KB of one opener, and openers deeper than Python recurses, one character a delta."""
    opener = _openers(name)[0]
    for text in (_filled(opener, 25_000), (opener + "edit_file ") * (2 * sys.getrecursionlimit())):
        assert not dovetail.fold(stream(name, text, thinking=False)).calls


@families_all
@pytest.mark.parametrize("thinking", [False, True])
def test_what_is_withheld_is_bounded(name: str, thinking: bool) -> None:
    """Words after an opener and any part of a call, and a long value: all but the markup is shown by and by."""
    start = opening(name)
    for place in (0, *(match.end() for match in re.finditer(r"[>\]\n:]|edit_file|path", start)), len(start)):
        reader = families.format_of(name).reader(TOOLS, thinking=thinking)
        events, out, withheld = [], 0, 0
        for fed, character in enumerate(start[:place] + "so on " * 850, start=1):
            fresh = reader.feed(character)
            events += fresh
            out += shown(fresh)
            withheld = max(withheld, fed - out)
        # What cannot be read as arguments comes at the end of the call, as a whole.
        malformed = any(isinstance(e, Defect) and e.kind == "malformed_call" for e in [*events, *reader.finish()])
        assert malformed or withheld <= FARTHEST_CALL + len(start)


# -- law 3: nothing is lost -------------------------------------------------------------------------------------------


@families_all
@few
@given(st.data(), st.lists(st.integers(min_value=0), min_size=1, max_size=12), st.booleans(), stops)
def test_nothing_is_lost(name: str, data: st.DataObject, places: list[int], thinking: bool, reason: str) -> None:
    """Characters numbered from the private-use area come out once each, wherever they stood.

    In each of them they stay in order. The exception is an attribute of a tag that the family does not have: that is
    markup, see `families.swallowed`.
    """
    pieces = cut(re.sub(r"[\ue000-\uf000]|\\u[eE][0-9a-fA-F]{3}", "", data.draw(families.outputs(name))), places)
    text = "".join(piece + chr(0xE000 + i) for i, piece in enumerate(pieces))
    message = dovetail.fold(stream(name, [text], reason, thinking=thinking))
    calls = [call.name + _unescaped(_written(call.arguments)) for call in message.calls]
    places_out = [[c for c in out if "\ue000" <= c <= "\uf000"] for out in (message.content, message.reasoning, *calls)]
    out = [c for places in places_out for c in places]
    assert len(out) == len(set(out))
    assert all(places == sorted(places) for places in places_out)
    may_go = families.swallowed(name, text)
    assert not [(i, text) for i, c in enumerate(text) if "\ue000" <= c <= "\uf000" and c not in out and i not in may_go]


def _written(arguments: str) -> str:
    """The arguments, or of those that cannot be read only the text, which repeats what was passed on before."""
    try:
        return str(json.loads(arguments)[MALFORMED])
    except (ValueError, LookupError, TypeError):
        return arguments


@pytest.mark.slow
@families_all
@pytest.mark.parametrize("character", proof_but([",", ";", "x", "}", "]", "é"], ",", "x", "}"))
def test_a_character_more_is_seen(name: str, character: str) -> None:
    """Anywhere in a written output it changes the message, or there is a defect, except where it is only layout."""
    fmt, thinking = families.format_of(name), opened(name, True)
    for text in families.sample_outputs(name):
        whole = fmt.parse(text, TOOLS, thinking=thinking)
        for place in range(len(text) + 1):
            longer = text[:place] + character + text[place:]
            if fmt.parse(longer, TOOLS, thinking=thinking) == whole:
                assert re.match(fmt.reader_type.layout, longer[place:]), longer[max(0, place - 20) : place + 20]


def _unescaped(arguments: str) -> str:
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), arguments)


# -- law 4: arguments are JSON; law 6: ids are unique, indices contiguous ---------------------------------------------


@families_all
@few
@given(st.data(), st.booleans(), stops)
def test_calls_are_well_formed(name: str, data: st.DataObject, thinking: bool, reason: str) -> None:
    text = data.draw(families.outputs(name))
    events = stream(name, list(text), reason, thinking=thinking)
    calls = dovetail.fold(events).calls
    assert [e.index for e in events if isinstance(e, CallStart)] == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.name and call.id for call in calls)
    current, ended = -1, True
    for event in events:
        match event:
            case CallStart(index):
                current, ended = index, False
            case CallArguments(index, fragment):
                assert index == current and not ended and fragment
            case CallEnd(index):
                assert index == current and not ended
                ended = True
                json.loads(calls[index].arguments, parse_constant=pytest.fail)
            case Content(text) | Reasoning(text):
                assert text


# -- law 5: markers are tokens ----------------------------------------------------------------------------------------


@families_all
@few
@given(st.data(), st.booleans())
def test_spelled_control_tokens_are_text(name: str, data: st.DataObject, thinking: bool) -> None:
    """An output whose every character is ordinary: whatever of the family's markup needs control tokens is prose.

    So an output is all text where it holds none of what the family marks with ordinary text; what spells control tokens
    in `families.texts` never does.
    """
    tokenizer = families.tokenizer_of(name)
    text = data.draw(families.outputs(name) | families.texts(name, ids=True))
    read = dovetail.fold(stream_ids(name, [tokenizer.encode(text)], tokenizer, thinking=thinking))
    blocks, openers, inner = _ordinary(name)
    begins = re.search(families.format_of(name).reader_type.unmarked, text) or any(o in text for o in openers)
    in_content = not thinking or any(block in text for block in blocks)
    if "unmarked_call" in [defect.kind for defect in read.defects]:  # a call without markup
        return
    if not (begins and in_content):  # in reasoning, ordinary text opens a call only if that ends the output
        assert not read.calls or (begins and not read.content)
    if not any(block in text for block in blocks):
        assert thinking or not read.reasoning
        if not (read.calls or (begins and in_content)) and not any(marker in text for marker in inner):
            # Newlines that the template writes behind an opened `<think>` are not the model's, nor is space between
            # messages.
            assert (read.reasoning if thinking else read.content).lstrip() == text.lstrip()


def _ordinary(name: str) -> tuple[list[str], list[str], list[str]]:
    """The family's markers of reasoning, openers of calls, and others that are ordinary text."""
    kind = families.format_of(name).reader_type
    groups = ((kind.think, kind.think_end), getattr(kind, "openers", ()), (*kind.inner, *kind.ends))
    blocks, openers, inner = (
        [marker.strip() for marker in group if not any(control in marker for control in kind.controls)]
        for group in groups
    )
    return blocks, openers, inner


REAL = ("kimi_k25", "deepseek_v3", "qwen2.tokenizer.json", "gpt-2.tokenizer.json")


@pytest.fixture(scope="session", params=REAL)
def real_tokenizer(request: pytest.FixtureRequest, published_tokenizer: Callable[[str], Tokenizer]) -> Tokenizer:
    return published_tokenizer(request.param)


@families_all
def test_ids_of_real_tokenizers_read_as_the_text_does(name: str, real_tokenizer: Tokenizer) -> None:
    """Those of the model's own control tokens that the tokenizer has are tokens, the others are spelled."""
    fmt = families.format_of(name)
    more = Call("functions.edit_file:2", "edit_file", '{"path": "né \\"漢\\"\\n🙂 </x>", "lines": [1, -20]}')
    prompt = fmt.write(Message("Né 漢 🙂.", "So?" * reasons(name, True), (*families.SAMPLE.calls, more)))
    ids: list[int] = []
    for text, control in prompt.segments:
        known = real_tokenizer.control.get(text) if control else None
        ids += real_tokenizer.encode(text) if known is None else [known]
    thinking = opened(name, True)
    whole = fmt.parse(prompt.text, TOOLS, thinking=thinking)
    assert (len(whole.calls), whole.defects) == (3, ())
    random = Random(name)
    for groups in (
        [ids],
        [[token] for token in ids],
        [ids[at : at + 3] for at in range(0, len(ids), 3)],
        cut(ids, [random.randrange(len(ids)) for _ in range(20)]),
    ):
        assert dovetail.fold(stream_ids(name, groups, real_tokenizer, thinking=thinking)) == whole


@families_all
@few
@given(st.data(), families.cuts, st.booleans())
def test_a_tokenizer_without_control_tokens_reads_literals(
    name: str, data: st.DataObject, places: list[int], thinking: bool
) -> None:
    text, tokenizer = data.draw(families.outputs(name)), families.tokenizer_of(name, with_controls=False)
    groups = cut(tokenizer.encode(text), places)
    read = dovetail.fold(stream_ids(name, groups, tokenizer, thinking=thinking))
    assert read == dovetail.fold(stream(name, [text], thinking=thinking))


# -- law 6c: a mention is no call -------------------------------------------------------------------------------------

#: A marker in the middle of a line, and one that a line begins with or that follows a mention of itself.
IN_LINE = ("Before `{}` after, and ({}) too, then {}.", "It ends with `{}`")
ALONE = ("Format:\n{} opens a call.", "`{}`{}get_weather`{}`")


def _mentions(name: str) -> Iterator[str]:
    """Prose about the family's markers."""
    reader = families.format_of(name).reader_type
    around = {reader.think.strip(), reader.think_end.strip(), *(end.strip() for end in reader.ends)}
    around |= {getattr(reader, "answer", ""), getattr(reader, "answer_end", "").strip()}
    in_calls = {marker.strip() for marker in (*getattr(reader, "openers", ()), *reader.inner)} - around
    for marker in sorted(in_calls):
        yield from (text.replace("{}", marker) for text in (*IN_LINE, *ALONE))
    if name in SHARED_WALK:
        # Not the end of reasoning, which ends it wherever it stands.
        for marker in sorted({reader.think, *reader.ends}):
            yield from (text.replace("{}", marker.strip()) for text in IN_LINE)


@families_all
def test_a_mention_is_no_call(name: str) -> None:
    """Whatever an answer or its reasoning says about the family's markers is read verbatim, in any cut."""
    fmt = families.format_of(name)
    for text in _mentions(name):
        for message in (Message(text), *([Message("Hello.", text)] if reasons(name, True) else [])):
            thinking = bool(message.reasoning)
            written = fmt.write(message, thinking=thinking).text
            for pieces in ([written], list(written), [written[i : i + 5] for i in range(0, len(written), 5)]):
                read = dovetail.fold(stream(name, pieces, thinking=opened(name, thinking)))
                assert (meaning(read), read.defects) == (meaning(message), ())


# -- bad input --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_schema_words = st.sampled_from(
    ("string", "integer", "number", "boolean", "null", "object", "array", "#", "#/$defs/a", "#/properties/path", "a")
)
#: What looks like a schema and may not be one: cycles, pointers to nowhere, words where objects should be.
schemas = st.recursive(
    _schema_words | json_values,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type anyOf oneOf allOf $ref $defs properties items required enum const path lines a not".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
junk_tools = (
    st.fixed_dictionaries({"edit_file": schemas, "get_weather": schemas, "pin-it": schemas}).map(
        lambda drawn: [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in drawn.items()]
    )
    | st.lists(st.dictionaries(st.sampled_from(("type", "function", "name")), json_values), max_size=3)
    | json_values
)


@pytest.mark.slow
@families_all
@few
@given(st.data(), junk_tools, stops)
@example(None, [{"type": "function", "function": {"name": "edit_file", "parameters": {"$ref": "#"}}}], "stop")
def test_no_tools_raise(name: str, data: st.DataObject | None, tools: Any, reason: str) -> None:
    text = data.draw(families.outputs(name)) if data else opening(name) + "x"
    whole = dovetail.fold(stream(name, [text], reason, tools))
    assert dovetail.fold(stream(name, list(text), reason, tools)) == whole


@families_all
@few
@given(st.text(max_size=300) | st.text(st.sampled_from("\ud800\ud801\udfff<a"), min_size=1), st.booleans(), stops)
def test_no_text_raises(name: str, text: str, thinking: bool, reason: str) -> None:
    """Lone surrogates are no text: they come out as U+FFFD."""
    message = dovetail.fold(stream(name, list(text), reason, thinking=thinking))
    assert message == dovetail.fold(stream(name, [text], reason, thinking=thinking))
    (message.content + message.reasoning + "".join(c.name + c.arguments for c in message.calls)).encode()


@families_all
@few
@given(st.data(), st.booleans())
def test_nothing_is_a_call_when_none_is_asked_for(name: str, data: st.DataObject, thinking: bool) -> None:
    text = data.draw(families.outputs(name))
    events = stream(name, list(text), thinking=thinking, tool_choice="none")
    assert not any(isinstance(event, CallStart | CallArguments | CallEnd) for event in events)
    assert dovetail.fold(events) == dovetail.fold(stream(name, [text], thinking=thinking, tool_choice="none"))


@families_all
def test_misuse_is_said(name: str) -> None:
    machine = families.format_of(name).reader()
    with pytest.raises(ReaderMisuse, match="without a tokenizer"):
        machine.feed("", [1])
    machine.finish()
    with pytest.raises(ReaderMisuse, match="finished"):
        machine.feed("more")
    with pytest.raises(ReaderMisuse, match="finished"):
        machine.feed_segments([Segment("more", False)])
    with pytest.raises(ReaderMisuse, match="finished"):
        machine.finish()


# -- outputs that end or begin where they should not -------------------------------------------------------------------


@families_all
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_call_that_is_cut_off_stays_cut_off(name: str, reason: str) -> None:
    for repaired in (False, True):
        reader = families.format_of(name).reader(TOOLS, thinking=False, repair_arguments=repaired)
        events = [*reader.feed(opening(name) + "par"), *reader.finish(reason)]
        (call,) = dovetail.fold(events).calls
        assert call.arguments.startswith('{"path": "par')
        assert "truncated_call" in [event.kind for event in events if isinstance(event, Defect)]
        assert any(isinstance(event, CallEnd) for event in events) is repaired
        assert not repaired or json.loads(call.arguments) == {"path": "par"}


@families_all
def test_a_call_in_an_answer_without_calls_is_reported(name: str) -> None:
    fmt = families.format_of(name)
    message = fmt.parse(families.sample_outputs(name)[0], TOOLS, thinking=opened(name, True), tool_choice="none")
    assert not message.calls and all(word in message.content for word in ("CONTENT", "VALUE"))
    if not families.opens_in_text(name):  # ordinary text is then no marker
        assert "call_not_allowed" in [defect.kind for defect in message.defects]


@pytest.mark.parametrize("name", SHARED_WALK)
def test_a_section_of_calls_ends_open_reasoning(name: str) -> None:
    fmt = families.format_of(name)
    calls = fmt.write(Message("x", "", _ONE_CALL.calls), thinking=False).text.partition("x")[2]
    message = fmt.parse("hm" + calls, TOOLS, thinking=True)
    if name == "functionary":  # whose marker is too short to mean anything in reasoning
        assert (message.reasoning, message.calls, message.defects) == ("hm" + calls[: -len(fmt.end_of_turn[0])], (), ())
        return
    assert (message.reasoning.rstrip(), len(message.calls)) == ("hm", 1)
    assert [defect.kind for defect in message.defects] == ["reasoning_not_closed"]
