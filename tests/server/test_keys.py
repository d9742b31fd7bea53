"""The file of named keys: what it may hold, how it is read again, and the command that makes keys."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from dovetail.cli.main import main
from dovetail.errors import PlanError
from dovetail.gateway.limits.keys import PREFIX, KeyLimits, Keyring, digest_of
from dovetail.plan import resolve
from dovetail.server.api_keys import CLIENT_KEY, client_keys
from dovetail.server.hangup import reloaded_on_hangup
from dovetail.server.key_file import entry_of, read_keys, reload_keys
from tests.cli.test_serve import free_port, serving

SECRET = f"{PREFIX}" + "s3cret" * 8
HASH = f"sha256:{digest_of(SECRET).hex()}"


def test_an_entry_may_have_every_limit(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"alice:\n  hash: {HASH}\n  requests_per_minute: 60\n  tokens_per_minute: 100000\n  concurrent_requests: 4\n"
        "  models: [m, n]\n  n: 2\n  max_tokens: 100\n"
        f"bob@example.com: {{hash: 'sha256:{'0' * 64}', n: null}}\n12: {{hash: sha256:{'1' * 64}, scope: metrics}}\n"
    )
    alice, bob, twelve = read_keys(file)
    assert (alice.name, alice.digest, alice.scope) == ("alice", digest_of(SECRET), "api")
    assert alice.limits == KeyLimits(
        requests_per_minute=60,
        tokens_per_minute=100_000,
        concurrent_requests=4,
        models=frozenset("mn"),
        n=2,
        max_tokens=100,
    )
    assert (bob.name, bob.limits) == ("bob@example.com", KeyLimits())
    assert (twelve.name, twelve.scope) == ("12", "metrics")


def entry(text: str) -> str:
    return f"alice:\n  hash: {HASH}\n  {text}\n"


BAD = {
    "nothing": ("", r"must have an entry for each key: `dovetail key new NAME` makes one"),
    "no entries": ("{}", r"must have an entry"),
    "a list": (f"- {HASH}", r"must have an entry"),
    "not YAML": ("alice: {hash: [", r"is not valid YAML"),
    "a key that is not YAML": (f"alice: {{hash: '{SECRET}", r"is not valid YAML"),
    "not UTF-8": (b"alice: \xff", r"is not valid YAML"),
    "larger than a megabyte": ("#" * (1 << 20) + "#", r"is larger than 1 MiB"),
    "a name twice": (entry("n: 1") * 2, r"the key 'alice' is repeated"),
    "a hash twice": (f"a: {{hash: {HASH}}}\nb: {{hash: {HASH}}}", r"b: it has the hash of a: every name needs a key"),
    "no entry": ("alice:", r"alice: expected object, got null"),
    "a key as the entry": (f"alice: {SECRET}", r"alice: expected object, got str"),
    "no hash": ("alice: {n: 1}", r"alice: object missing required field hash \(the fields are hash, scope,"),
    "a key in place of its hash": (
        f"alice: {{hash: {SECRET}}}",
        r"alice: hash must be `sha256:` .* never the key itself",
    ),
    "a key as a name": (f"{SECRET}: {{hash: x}}", r"hash must be"),
    "a key as a field": (f"alice: {{hash: {HASH}, {SECRET}: 1}}", r"alice: object contains unknown field"),
    "a hash without its kind": (f"alice: {{hash: {HASH[7:]}}}", r"alice: hash must be `sha256:`"),
    "a short hash": (f"alice: {{hash: {HASH[:-1]}}}", r"alice: hash must be `sha256:`"),
    "an unknown field": (entry("rpm: 3"), r"alice: object contains unknown field rpm \(the fields are"),
    "an unknown scope": (entry("scope: admin"), r"alice: invalid enum value 'admin' - at \$\.scope"),
    "a negative limit": (entry("requests_per_minute: -1"), r"expected int >= 1 - at \$\.requests_per_minute"),
    "no requests": (entry("concurrent_requests: 0"), r"expected int >= 1 - at \$\.concurrent_requests"),
    "half a token": (entry("tokens_per_minute: 0.5"), r"expected int.* got float - at \$\.tokens_per_minute"),
    "a limit in words": (entry("max_tokens: many"), r"expected int.* got str - at \$\.max_tokens"),
    "a switch": (entry("n: true"), r"expected int.* got bool - at \$\.n"),
    "no model": (entry("models: []"), r"expected array of length >= 1 - at \$\.models"),
    "an empty model": (entry("models: ['']"), r"expected str of length >= 1"),
    "a model alone": (entry("models: m"), r"expected array.* got str - at \$\.models"),
    "a name with a space": (f"a b: {{hash: {HASH}}}", r"'a b' cannot be the name of a key"),
    "a name with a line": (f'"a\\nb": {{hash: {HASH}}}', r"'a\\nb' cannot be the name of a key"),
    "a long name": (f"{'a' * 65}: {{hash: {HASH}}}", r"cannot be the name of a key"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_its_place_and_without_a_key(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError, match=message) as refused:
        read_keys(file)
    assert refused.value.message.startswith(f"api_keys {file}")
    assert "s3cret" not in refused.value.message and refused.value.__cause__ is None


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read: Is a directory"):
        read_keys(tmp_path)


def test_a_server_may_have_both_kinds_of_keys(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLIENT_KEY, raising=False)
    file = tmp_path / "keys.yaml"
    file.write_text(entry_of("alice", SECRET))
    with_file, without = resolve(str(pair / "target"), {"api_keys": str(file)}), resolve(str(pair / "target"), {})
    assert not client_keys(without).needed
    keys = client_keys(with_file)
    assert keys.needed and keys.single is None and keys.named is not None
    assert keys.named.find([SECRET]) is keys.named.accounts[0]
    monkeypatch.setenv(CLIENT_KEY, "from-outside")
    assert client_keys(with_file).single == client_keys(without).single == "from-outside"
    file.write_text("alice:")
    with pytest.raises(PlanError, match="alice: expected object"):
        client_keys(with_file)


def test_the_command_makes_a_key_and_its_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "alice"]) == 0
    entry, shown = capsys.readouterr()
    (key,) = (line for line in shown.splitlines() if line.startswith(PREFIX))
    assert "the key of alice, shown this once:" in shown and key not in entry
    assert main(["key", "new", "bob"]) == 0
    file = tmp_path / "keys.yaml"
    file.write_text(entry + capsys.readouterr().out)
    alice, bob = read_keys(file)
    assert (alice.name, alice.digest, bob.name) == ("alice", digest_of(key), "bob")
    assert alice.digest != bob.digest
    assert main(["key", "new", "al ice"]) == 2
    out, complaint = capsys.readouterr()
    assert out == "" and complaint.startswith("dovetail: 'al ice' cannot be the name of a key")


def test_on_a_terminal_the_entry_has_a_heading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["key", "new", "alice"]) == 0
    assert capsys.readouterr().err.endswith("its entry for the file of `serve --api-keys`:\n")


def test_a_hangup_reads_the_file_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(entry_of("alice", SECRET))
    caplog.set_level(logging.INFO)

    async def main() -> None:
        keyring = Keyring(read_keys(file))

        async def hangup(lines: int) -> list[str]:
            os.kill(os.getpid(), signal.SIGHUP)
            while len(caplog.records) < lines:
                await asyncio.sleep(0.001)
            return [account.name for account in keyring.accounts]

        async with reloaded_on_hangup([partial(reload_keys, keyring, file)]):
            file.write_text(f"alice: {{hash: {SECRET}}}")
            assert await hangup(1) == ["alice"] and keyring.find([SECRET]) is not None
            file.unlink()
            assert await hangup(2) == ["alice"] and keyring.find([SECRET]) is not None
            file.write_text(entry_of("bob", "another"))
            assert await hangup(3) == ["bob"] and keyring.find([SECRET]) is None

    earlier = signal.getsignal(signal.SIGHUP)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGHUP) == earlier
    first, second, third = caplog.messages
    assert first.startswith(f"the API keys stay as they were: api_keys {file}: alice: hash must be")
    assert second.startswith(f"the API keys stay as they were: api_keys {file} cannot be read")
    assert third == f"1 API keys were read again from {file}"
    assert "s3cret" not in caplog.text


@pytest.mark.slow
def test_a_served_model_with_named_keys(pair: Path, tmp_path: Path) -> None:
    """The whole way: the option, a limit, SIGHUP, and metrics on a port of their own."""
    file = tmp_path / "keys.yaml"
    file.write_text(entry_of("alice", SECRET) + "  requests_per_minute: 1\n")
    port, metrics = free_port(), free_port()
    alice, bob = ({"authorization": f"Bearer {key}"} for key in (SECRET, "bobs"))
    with (
        serving(port, pair / "target", "--context", "256", "--api-keys", file, "--metrics-port", str(metrics)) as child,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):

        def status(headers: dict[str, str]) -> int:
            return client.post("/tokenize", json={"prompt": "a"}, headers=headers).status_code

        assert [status({}), status(alice), status(alice), status(bob)] == [401, 200, 429, 401]
        file.write_text(entry_of("bob", "bobs"))
        child.send_signal(signal.SIGHUP)
        while status(bob) == 401:
            pass
        assert [status(alice), status(bob)] == [401, 200]
        assert client.get("/metrics").status_code == 404
        shown = httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
        assert 'dovetail_key_responses_total{key="bob",status="200"}' in shown and "alice" not in shown
        child.send_signal(signal.SIGINT)
        printed, complaints = child.communicate(timeout=30)
    assert "$DOVETAIL_API_KEY" in printed
    assert complaints == f"1 API keys were read again from {file}\n"
    assert child.returncode == 0
