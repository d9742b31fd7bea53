"""Servers that come and go: looked up in DNS and in Kubernetes, and what the engine does with what is found."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dovetail.backends.remote import RemoteEngine
from dovetail.backends.remote.members import Members, Names, finder, together
from dovetail.completion import MetricSample
from dovetail.errors import EngineError, PlanError
from tests.backends.remote.fake import PROMPT, Fake, continuation, run, until
from tests.backends.remote.test_engine import answered, at, endless, up


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "FOLLOW_S"):
        monkeypatch.setattr(f"dovetail.backends.remote.engine.{name}", 0.02)


class Place:
    """What a name stands for, and can be changed."""

    def __init__(self, *fakes: Fake) -> None:
        self.fakes = list(fakes)
        self.fails = False

    async def find(self) -> Collection[str]:
        if self.fails:
            raise EngineError("the name cannot be looked up")
        return [fake.url for fake in self.fakes]

    def engine(self) -> RemoteEngine:
        servers = {fake.url: fake for fake in self.fakes}
        self.known = servers
        return RemoteEngine([], members=Members(self.find, lambda url: self.known[url].server()), patience_s=5)

    def add(self, fake: Fake) -> None:
        self.known[fake.url] = fake
        self.fakes.append(fake)


def names(engine: RemoteEngine) -> set[str]:
    """The servers that the engine knows."""
    return {sample.labels["server"] for sample in engine.gauges() if sample.name == "server_up"}


def test_a_server_joins_and_leaves_when_it_has_answered() -> None:
    async def main() -> None:
        async with Fake(answer=endless) as first, Fake() as second:
            place = Place(first)
            engine = place.engine()
            await engine.start()
            endless_one = asyncio.create_task(answered(engine, at([first], 0, max_tokens=10**6)))
            await until(lambda: first.running == 1)
            place.add(second)
            await until(lambda: up(engine, second))
            place.fakes.remove(first)
            await until(lambda: [server.name for server in engine.servers] == [second.name])
            for place_in_order in (0, 1):  # its own conversations go elsewhere
                assert await answered(engine, at([first, second], place_in_order, max_tokens=8)) == continuation(
                    PROMPT, 8
                )
            assert len(first.received) == 1 and len(second.received) == 2
            await asyncio.sleep(0.1)
            assert first.running == 1, "what runs there is not cut"
            endless_one.cancel()
            await until(lambda: names(engine) == {second.name})
            await engine.stop()

    run(main)


def test_a_server_that_is_there_again_before_it_has_left_stays() -> None:
    async def main() -> None:
        async with Fake(answer=endless) as first, Fake() as second:
            place = Place(first, second)
            engine = place.engine()
            await engine.start()
            running = asyncio.create_task(answered(engine, at([first, second], 0, max_tokens=10**6)))
            await until(lambda: first.running == 1)
            place.fakes.remove(first)
            await until(lambda: len(engine.servers) == 1)
            place.fakes.append(first)
            await until(lambda: len(engine.servers) == 2)
            assert first.running == 1
            running.cancel()
            await engine.stop()

    run(main)


def test_while_nobody_knows_the_servers_stay(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Fake() as fake:
            place = Place(fake)
            engine = place.engine()
            await engine.start()
            place.fails = True
            await until(lambda: "the last ones stay" in caplog.text)
            await asyncio.sleep(0.1)
            assert caplog.text.count("the last ones stay") == 1
            assert await answered(engine) == continuation(PROMPT, 8)
            await engine.stop()

    run(main)


def test_requests_wait_while_there_is_no_server() -> None:
    async def main() -> None:
        async with Fake() as first, Fake() as second:
            place = Place(first)
            engine = place.engine()
            await engine.start()
            place.fakes.clear()
            await until(lambda: not names(engine))
            assert MetricSample("up", {}, False) in engine.gauges()
            waiting = asyncio.create_task(answered(engine))
            await asyncio.sleep(0.05)
            place.add(second)
            assert await waiting == continuation(PROMPT, 8)
            await engine.stop()

    run(main)


def test_a_server_that_dies_while_it_leaves_loses_no_request() -> None:
    async def main() -> None:
        async with Fake(answer=endless) as first, Fake() as second:

            async def nothing(body: dict[str, Any]) -> Any:
                yield b": waiting\n\n"
                await asyncio.Event().wait()

            first.answer = nothing
            place = Place(first, second)
            engine = place.engine()
            await engine.start()
            running = asyncio.create_task(answered(engine, at([first, second], 0, max_tokens=8)))
            await until(lambda: first.running == 1)
            place.fakes.remove(first)
            await until(lambda: len(engine.servers) == 1)
            await first.stop()
            assert await running == continuation(PROMPT, 8)
            await until(lambda: names(engine) == {second.name})
            await engine.stop()

    run(main)


def test_a_start_without_any_server_says_why() -> None:
    async def main() -> None:
        place = Place()
        with pytest.raises(EngineError, match="finds no engine"):
            await place.engine().start()
        place.fails = True
        with pytest.raises(EngineError, match="cannot be looked up"):
            await place.engine().start()

    run(main)


def test_the_addresses_of_a_name() -> None:
    async def main() -> None:
        assert "http://127.0.0.1:8000" in await Names("localhost", 8000).find()
        with pytest.raises(EngineError, match=r"name\.invalid cannot be looked up in DNS"):
            await Names("name.invalid", 8000).find()
        for name in ("a..b", "a" * 64):
            with pytest.raises(EngineError, match="cannot be looked up in DNS: "):
                await Names(name, 8000).find()
        find = finder("dns://localhost:8001")
        assert find is not None
        both = await together([Names("localhost", 8000).find, find])()
        assert {"http://127.0.0.1:8000", "http://127.0.0.1:8001"} <= set(both)

    run(main)


def test_addresses_of_one_server_and_of_none() -> None:
    assert finder("http://127.0.0.1:8000") is None
    for wrong in (
        "dns://name",
        "dns://name:0",
        "dns://name:65536",
        "dns:name:8000",
        "dns://name:8000/v1",
        "kubernetes://",
        "kubernetes://A_B",
    ):
        with pytest.raises(PlanError, match="dns://NAME:PORT"):
            finder(wrong)


def endpoint(address: str, ready: bool | None = True) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {} if ready is None else {"ready": ready}}


SLICES = [
    {"endpoints": [endpoint("10.0.0.1"), endpoint("10.0.0.2", False)]},
    {"endpoints": [endpoint("10.0.0.3", None), endpoint("fd00::1")]},
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """An API server that lists the endpoints of one service, and a kubeconfig for it."""
    pytest.importorskip("kubernetes")
    state: dict[str, Any] = {"status": 200, "paths": []}

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state["paths"].append(self.path)
            ports = [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}]
            items = [
                {"metadata": {"name": f"s{i}"}, "addressType": "IPv4", "ports": ports, **each}
                for i, each in enumerate(SLICES)
            ]
            body = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": items}
            data = json.dumps(body if state["status"] == 200 else {"reason": "Forbidden"}).encode()
            self.send_response(state["status"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_ready_endpoints_of_a_service(cluster: dict[str, Any]) -> None:
    async def found(address: str) -> list[str]:
        find = finder(address)
        assert find is not None
        return [*await find()]

    async def main() -> None:
        hosts = ["10.0.0.1", "10.0.0.3", "[fd00::1]"]
        assert await found("kubernetes://qwen.models:http") == [f"http://{host}:8000" for host in hosts]
        assert "/namespaces/models/endpointslices" in cluster["paths"][0]
        assert "service-name%3Dqwen" in cluster["paths"][0]
        assert await found("kubernetes://qwen:8000") == [f"http://{host}:8000" for host in hosts]
        assert await found("kubernetes://qwen") == [f"http://{host}:9090" for host in hosts]
        assert await found("kubernetes://qwen:grpc") == []
        cluster["status"] = 403
        with pytest.raises(EngineError, match=r"the endpoints of qwen\.default cannot be listed: Forbidden"):
            await found("kubernetes://qwen")

    run(main)
