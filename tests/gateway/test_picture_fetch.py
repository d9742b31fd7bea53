"""Pictures by https URLs: from hosts that the operator lists, at public addresses, within limits, and each once."""

from __future__ import annotations

import asyncio
import gzip
import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from dovetail.errors import InvalidRequest
from dovetail.events import Message
from dovetail.gateway import Settings
from dovetail.gateway.http import picture_fetch
from dovetail.gateway.http.picture_fetch import PictureFetcher, is_public
from dovetail.gateway.turn.picture_files import LIMITS, RemotePicture
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process

pytestmark = pytest.mark.anyio

TLS = Path(__file__).parents[1] / "server" / "tls"


def png(color: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(out, "PNG")
    return out.getvalue()


class Host:
    """An https server at localhost. `pages`: what it sends at each path, whole; None for nothing, ever."""

    def __init__(self, pages: dict[str, bytes | None]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.port = 0

    def url(self, path: str) -> str:
        return f"https://localhost:{self.port}{path}"

    def fetcher(self, *hosts: str, **options: Any) -> PictureFetcher:
        context = ssl.create_default_context(cafile=str(TLS / "server.pem"))
        options = {"allowed": lambda address: True, **options}
        return PictureFetcher(hosts or ("localhost",), context=context, port=self.port, **options)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.split()[1])
        page = self.pages.get(self.asked[-1], b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n")
        if page is None:
            await asyncio.sleep(60)
        writer.write(page or b"")
        writer.close()


@asynccontextmanager
async def host(**pages: bytes | None) -> AsyncIterator[Host]:
    made = Host({f"/{path}": page for path, page in pages.items()})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    server = await asyncio.start_server(made.answer, "localhost", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    for other in server.sockets[1:]:
        other.close()
    try:
        yield made
    finally:
        server.close()


def sent(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def moved(url: str) -> bytes:
    return f"HTTP/1.1 302 x\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


def asking(*urls: str) -> TurnRequest:
    return TurnRequest(id="", pictures=tuple(RemotePicture(url, f"parts[{i}]") for i, url in enumerate(urls)))


async def test_it_is_fetched_once_and_checked() -> None:
    async with host(a=sent(png()), b=sent(png("blue"))) as there:
        a, b = there.url("/a"), there.url("/b")
        request = await there.fetcher().fetched(asking(a, b, a))
        assert sorted(there.asked) == ["/a", "/b"]
    assert [getattr(each, "data", None) for each in request.pictures] == [png(), png("blue"), png()]
    assert not request.has_remote_pictures


async def test_a_redirect_is_followed_a_few_times() -> None:
    async with host(a=moved("/b"), b=moved("/c"), c=sent(png())) as there:
        await there.fetcher().fetched(asking(there.url("/a")))
        assert there.asked == ["/a", "/b", "/c"]


LOCAL = (
    "http://localhost/a",
    "https://127.0.0.1/a",
    "https://[::1]/a",
    "https://other.example/a",
    "file:///etc/passwd",
)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (None, "it did not come within"),
        (sent(b"x" * 99), "is no picture"),
        (b"HTTP/1.1 500 x\r\n\r\n", "HTTP status 500"),
        (b"nonsense\r\n\r\n", "does not answer"),
        (b"", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + png()[:20], "does not answer"),
        (moved("/a"), "redirected more than 3 times"),
        *((moved(url), "redirected to a URL that is not|fetches no pictures from its host") for url in LOCAL),
    ],
)
async def test_what_is_no_picture_in_time_is_the_clients_error(page: bytes | None, why: str) -> None:
    async with host(a=page) as there:
        with pytest.raises(InvalidRequest, match=why) as refused:
            await there.fetcher(seconds=0.3 if page is None else 10).fetched(asking(there.url("/a")))
    assert refused.value.param == "parts[0]" and refused.value.message.startswith("parts[0] ")


async def test_a_file_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_fetch, "LIMITS", msgspec.structs.replace(LIMITS, size=50))
    async with host(a=sent(png())) as there:
        with pytest.raises(InvalidRequest, match="more than 50 bytes"):
            await there.fetcher().fetched(asking(there.url("/a")))


async def test_a_compressed_body_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(64 * 1024 * 1024))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with host(bomb=head + packed) as served:
        with pytest.raises(InvalidRequest, match="is no picture"):
            await served.fetcher().fetched(asking(served.url("/bomb")))


async def test_the_pictures_of_a_request_have_a_limit_together() -> None:
    data = png()
    async with host(a=sent(data), b=sent(data)) as there:
        urls = [there.url("/a"), there.url("/b")]
        for urls_, together in ((urls, 2 * len(data)), (urls[:1] * 9, len(data))):
            request = await there.fetcher(together=together).fetched(asking(*urls_))
            assert len(request.pictures) == len(urls_)
        with pytest.raises(InvalidRequest, match=f"more than {2 * len(data) - 1} bytes together"):
            await there.fetcher(together=2 * len(data) - 1).fetched(asking(*urls))


@pytest.mark.parametrize(
    "url", ["https://other.example/a", "https://localhost.:1/a", "https://127.0.0.1/a", "https://user@localhost/a"]
)
async def test_no_other_host_is_called(url: str) -> None:
    async with host(a=sent(png())) as there:
        for fetcher in (there.fetcher(), PictureFetcher(())):
            with pytest.raises(InvalidRequest):
                await fetcher.fetched(asking(url))
        assert not there.asked


async def test_a_host_with_a_private_address_is_not_called() -> None:
    """Even one that the operator lists, and where all hosts are allowed: its owner chooses its addresses."""
    async with host(a=sent(png())) as there:
        for hosts in (("localhost",), ("*",)):
            with pytest.raises(InvalidRequest, match="an address that is not public"):
                await there.fetcher(*hosts, allowed=is_public).fetched(asking(there.url("/a")))
        assert not there.asked


async def test_an_address_is_no_host_where_all_are_allowed() -> None:
    async with host(a=sent(png())) as there:
        with pytest.raises(InvalidRequest, match="an address where the name"):
            await there.fetcher("*").fetched(asking(f"https://127.0.0.1:{there.port}/a"))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:4700::1111", True),
        *((address, False) for address in ("127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254")),
        *((address, False) for address in ("0.0.0.0", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1")),
        *((address, False) for address in ("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1")),
        *((address, False) for address in ("64:ff9b::a00:1", "2002:a00:1::", "2001:db8::1")),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


# -- through the gateway ----------------------------------------------------------------------------------------------


def body(path: str, url: str) -> dict[str, Any]:
    if path == "/v1/messages":
        part: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": url}}
    elif path == "/v1/responses":
        part = {"type": "input_image", "image_url": url}
    else:
        part = {"type": "image_url", "image_url": {"url": url}}
    turns = [{"role": "user", "content": [part]}]
    return {"model": MODEL, "max_tokens": 9, "input" if path == "/v1/responses" else "messages": turns}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_the_engine_gets_what_was_fetched(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    engine.ids = ids_of(Message("ok"), tok)
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    async with host(a=sent(png())) as there:
        monkeypatch.setattr(
            "dovetail.gateway.app.PictureFetcher", lambda hosts, together: there.fetcher(*hosts, together=together)
        )
        settings = Settings(served_model_name=MODEL, image_hosts=("localhost",))
        async with in_process(engine, tok, settings) as client:
            answer = await client.post(path, json=body(path, there.url("/a")))
            assert answer.status_code == 200, answer.text
            refused = await client.post(path, json=body(path, there.url("/b")))
            assert (
                refused.status_code == 400
                and "cannot be fetched: its host answers with HTTP status 404" in refused.text
            )
    assert [picture.data for picture in engine.seen[0].pictures] == [png()]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_url_that_never_answers_is_a_400_that_names_the_part(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    async with host(a=None) as there:
        monkeypatch.setattr("dovetail.gateway.app.PictureFetcher", lambda hosts, _: there.fetcher(*hosts, seconds=0.2))
        settings = Settings(served_model_name=MODEL, image_hosts=("localhost",))
        async with in_process(engine, tok, settings) as client:
            answer = await client.post(path, json=body(path, there.url("/a")))
    assert answer.status_code == 400 and not engine.seen
    name = {
        "/v1/chat/completions": "messages[0].content[0].image_url.url",
        "/v1/responses": "input[0].content[0].image_url",
        "/v1/messages": "messages.0.content.0.image.source.url: Could not process image: it",
    }[path]
    assert answer.json()["error"]["message"] == f"{name} cannot be fetched: it did not come within 0.2 seconds"


async def test_messages_says_so_of_what_is_no_picture_too(
    engine: ScriptedEngine, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    async with host(a=sent(b"hello")) as there:
        monkeypatch.setattr("dovetail.gateway.app.PictureFetcher", lambda hosts, _: there.fetcher(*hosts))
        settings = Settings(served_model_name=MODEL, image_hosts=("localhost",))
        async with in_process(engine, tok, settings) as client:
            answer = await client.post("/v1/messages", json=body("/v1/messages", there.url("/a")))
    message = answer.json()["error"]["message"]
    assert message.startswith("messages.0.content.0.image.source.url: Could not process image: it is no picture")


async def test_nothing_is_fetched_by_default(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.info = msgspec.structs.replace(engine.info, pictures=True)
    path = "/v1/chat/completions"
    async with in_process(engine, tok) as client:
        answer = await client.post(path, json=body(path, "https://pictures.example/a.png"))
        rendered = await client.post(f"{path}/render", json=body(path, "https://pictures.example/a.png"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].image_url.url"
    assert "send it as a data: URL" in answer.json()["error"]["message"]
    assert rendered.status_code == 200, "it has a place, and nothing is fetched for it"
