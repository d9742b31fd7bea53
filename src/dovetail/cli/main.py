"""Reads the command line, runs one command, and turns what goes wrong into one message and an exit code.

Commands are imported when they run, so that `--help` costs nothing. Exit codes: 0 done, 1 `render --diff` found
a difference or `lint` something, 2 refused (usage, plan, checkpoint, input), 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from dovetail import __version__
from dovetail.errors import DovetailError

REFUSED = 2
_LONGEST = 2000  # characters of a message; the list of all settings is half of that
INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(next((word for word in words if not word.startswith("-")), None))
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_unknown(parser, arguments.command, unknown)
    code = 0
    try:
        # One module per command, each with a `run(arguments)` that may return an exit code.
        code = import_module(f"dovetail.cli.{arguments.command}").run(arguments) or 0
        sys.stdout.flush()
    except DovetailError as error:
        print(f"dovetail: {_line(error.message)}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; without this, Python complains when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, UnicodeError, RecursionError) as error:
        # Whatever a name, a file or a terminal can still be wrong about.
        print(f"dovetail: {type(error).__name__}: {_line(str(error))}", file=sys.stderr)
        return REFUSED
    return code


def _line(message: str) -> str:
    """One line, not endless, which cannot steer the terminal: messages name what stands in other people's files.

    Of a long one the middle is left out: what it is about comes first, and the way out last.
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} […] {message[-_LONGEST // 4 :]}"
    return "".join(character if character.isprintable() else " " for character in message)


def _parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of all commands. Those with a plan's many options have them only if it is the `command` asked for."""
    parser = argparse.ArgumentParser(prog="dovetail", description="Tool calls that stay exact at speculative speed.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "answer OpenAI requests over HTTP; without MODEL, with the bundled demo pair")
    plan = _command(commands, "plan", "show what `serve` would run, and where each value came from")
    shown = plan.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="as JSON")
    shown.add_argument(
        "--emit", choices=("vllm", "sglang", "trtllm", "k8s"), help="as another engine's command, or for a cluster"
    )
    shown.add_argument("--all", action="store_true", help="also the settings that are left to the engine")
    for name, with_plan in (("serve", serve), ("plan", plan)):
        with_plan.usage = f"dovetail {name} [MODEL] [--option VALUE …]"
        if command == name:
            _plan_options(with_plan)
    recipes = _command(commands, "recipes", "list the recipes, or show one: settings that are known to work")
    recipes.add_argument("name", metavar="NAME", nargs="?", help="a recipe's name, or a file with one of your own")
    recipes.add_argument("--json", action="store_true", help="as JSON")

    render = _command(commands, "render", "show the prompt that a chat completions request becomes")
    render.add_argument("request", metavar="REQUEST.json", help="the request's body; - reads standard input")
    language = render.add_mutually_exclusive_group(required=True)
    language.add_argument("--model", metavar="PATH", help="a checkpoint's folder: its format and its tokenizer")
    language.add_argument("--format", metavar="NAME", help="a format's name")
    written = render.add_mutually_exclusive_group()
    written.add_argument("--ids", action="store_true", help="token ids in place of text; needs --model")
    written.add_argument(
        "--diff",
        metavar="TEMPLATE",
        help="how the prompt differs from what a chat template makes of the same messages: a file's, or `model` for "
        "the checkpoint's own; exit code 1 where it does",
    )
    render.add_argument("--json", action="store_true", help="as JSON: text, segments, repairs (and ids with --model)")
    render.add_argument(
        "--no-repair",
        metavar="KIND[,KIND]|all",
        nargs="?",
        const="all",
        default="none",
        help="repairs that the history does not get, beside those that the request leaves off; without a KIND all",
    )
    render.add_argument("--no-generation-prompt", action="store_true", help="do not open an answer at the end")
    render.add_argument(
        "--continue-final-message", action="store_true", help="leave the last message open, to be gone on with"
    )

    parse = _command(commands, "parse", "read a model's whole output from standard input")
    parse.add_argument("--format", metavar="NAME", required=True, help="a format's name, or a checkpoint's folder")
    parse.add_argument("--tools", metavar="FILE", help="the request's tools, as a JSON list")
    parse.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="whether the prompt left a reasoning block open (default: as the format's prompts do)",
    )
    parse.add_argument("--finish", choices=("stop", "length"), default="stop", help="how the output ended")
    parse.add_argument(
        "--repair-arguments", action="store_true", help="close the strings and brackets that a cut-off call left open"
    )
    parse.add_argument("--json", action="store_true", help="as JSON")

    lint = _command(
        commands, "lint", "find what of tools' schemas no grammar enforces, and schemas that cannot be used"
    )
    lint.add_argument(
        "tools", metavar="TOOLS.json", help="tools as a JSON list, or a request's body; - reads standard input"
    )
    family = lint.add_mutually_exclusive_group()
    family.add_argument("--format", metavar="NAME", help="as calls of this format (default: arguments are JSON)")
    family.add_argument("--model", metavar="PATH", help="as calls of this checkpoint's format")
    lint.add_argument(
        "--for",
        dest="writer",
        choices=("lark", "structural_tag", "both"),
        default="both",
        help="which grammar: lark is for llguidance (the embedded engine, llama.cpp, vLLM with --grammar-backend "
        "guidance), structural_tag for xgrammar (vLLM, SGLang); default: both",
    )
    lint.add_argument("--json", action="store_true", help="as JSON")

    _command(commands, "version", "print the version")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str
) -> argparse.ArgumentParser:
    # No abbreviations: a script that says --draft must not change its meaning when an option is added.
    return commands.add_parser(name, help=does, description=does, allow_abbrev=False)


#: Group of settings -> its heading in the help, where that is another.
_HEADINGS = {"engine": "the engine", "machine": "the machine"}


def _plan_options(parser: argparse.ArgumentParser) -> None:
    """The options of a plan, which go into its "command line" layer only when they are given."""
    # Takes a fifth of a second, which only these commands need.
    from dovetail.plan.option import GROUPS
    from dovetail.plan.options import OPTIONS

    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a target's folder or hub id, or a speculators drafter's alone"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML with any of these settings, names with underscores")
    parser.add_argument(
        "--recipe", metavar="NAME|FILE|none", help="take this recipe (default: those that fit; `dovetail recipes`)"
    )
    for group in GROUPS:
        arguments = parser.add_argument_group(_HEADINGS.get(group, group), argument_default=argparse.SUPPRESS)
        for option in OPTIONS:
            if option.group == group and option.command_line:
                option.add_to(arguments)


def _refuse_unknown(parser: argparse.ArgumentParser, command: str, unknown: Sequence[str]) -> None:
    """End as argparse does, with the nearest names that the command does have."""
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    subparser: argparse.ArgumentParser = subparsers.choices[command]
    known = [option for action in subparser._actions for option in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    subparser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
