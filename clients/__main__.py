"""`python -m clients`: runs the clients against the demo and the scripted models, and writes docs/clients.md.

Rows of clients that are not run stay as they were; the page is written when every client has one."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clients import page, runner
from clients.catalogue import CLIENTS, ENVIRONMENTS, TARGETS, Client
from clients.environments import Environments, SetUpError
from clients.results import Record, Row, title
from clients.targets import Server, serving

SCRIPTS = Path(__file__).with_name("scripts")
PAGE = Path(__file__).parents[1] / "docs" / "clients.md"


def main() -> int:
    arguments = _arguments()
    # As Ctrl-C does, so that the servers are ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    chosen = [client for client in CLIENTS if _is_chosen(client, arguments.clients)]
    console = Console(highlight=False)
    environments = Environments(arguments.environments)
    record = Record(arguments.environments / "record.json")
    faults = 0
    with tempfile.TemporaryDirectory(prefix="dovetail-clients-") as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(name, Path(folder))) for name in arguments.targets]
        for number, client in enumerate(chosen, 1):
            console.print(f"{number} of {len(chosen)}: {title(client)}", style="bold")
            row = _run_client(client, servers, environments, Path(folder) / "work", console)
            faults += len(row.faults)
            if set(client.targets) <= set(arguments.targets):
                record.keep(row)
    if record.complete:
        PAGE.write_text(page.page(record.rows))
        console.print(f"wrote {PAGE}")
    console.print(f"{faults} faults" if faults else "all passed")
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("clients", nargs="*", help="environments or APIs (openai, codex, messages, …); none: all")
    parser.add_argument("--environments", type=Path, default=Path(".peers/clients"), help="where they are installed")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS, metavar="TARGET")
    return parser.parse_args()


def _is_chosen(client: Client, names: Sequence[str]) -> bool:
    return not names or client.environment in names or client.api in names


def _run_client(
    client: Client, servers: Sequence[Server], environments: Environments, folder: Path, console: Console
) -> Row:
    """Run a client against each of the servers that it is for."""
    environment = ENVIRONMENTS[client.environment]
    row = Row(title(client), f"{datetime.date.today():%Y-%m-%d}")
    try:
        with console.status("its environment"):
            installed = environments.make(environment)
    except SetUpError as error:
        row.skipped = f"cannot be installed here: {error}"
        console.print(f"  {row.skipped}", markup=False)
        return row
    row.versions = environments.versions(environment)
    for server in servers:
        if server.name in client.targets:
            with console.status(server.name):
                _run_one(row, client, server, _command(client, environments, installed), folder, console)
    return row


def _command(client: Client, environments: Environments, installed: Path) -> tuple[list[str], dict[str, str]]:
    """The program of a client as a command, and the variables that it needs."""
    script = SCRIPTS / client.script
    variables = {"DOVETAIL_API": client.api, "DOVETAIL_VARIANT": client.variant, "DOVETAIL_TOOLS": client.tools}
    variables |= {"DOVETAIL_INSTALLED": str(installed), "DOVETAIL_NODE": environments.node()}
    if script.suffix == ".mjs":
        # node looks for packages beside the program.
        for source in (script, SCRIPTS / "common.mjs"):
            shutil.copy(source, installed)
        script = installed / client.script
    python = environments.python(ENVIRONMENTS[client.environment])
    return [environments.node() if script.suffix == ".mjs" else python, str(script)], variables


def _run_one(
    row: Row,
    client: Client,
    server: Server,
    command: tuple[list[str], dict[str, str]],
    folder: Path,
    console: Console,
) -> None:
    """Run a client against a server, in an empty folder, and add what it saw to its row."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target, started, earlier = server.target(), time.monotonic(), len(row.faults)
    variables = {
        **command[1],
        "DOVETAIL_LOG": str(server.log),
        "DOVETAIL_FIRST": "1" * (server.name == client.targets[0]),
    }
    outcome = runner.run(command[0], folder, target.url, target.model, variables, client.timeout_s)
    row.add(outcome, server.target(len(target.completions)), client.tools, client.lacks)
    faults = row.faults[earlier:]
    console.print(
        f"  {server.name:13} {len(outcome.saw):2} seen, {len(faults)} faults, {time.monotonic() - started:.1f} s"
    )
    for _, feature, reason in faults:
        console.print(f"    {feature}: {reason:.300}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
