"""Parses the command line, runs one command, and turns errors into one message and an exit code.

Each command's module is imported when the command runs, so that `--help` takes a tenth of a second. Exit codes: 0
done; 1 `render --diff` found a difference or `lint` a problem; 2 refused (usage, plan, checkpoint, input); 130
interrupted.
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
INTERRUPTED = 128 + signal.SIGINT
_LONGEST = 2000  # characters of a message; the list of all settings takes half of that

_SERVE_EXAMPLES = """\
examples:
  dovetail serve
      the bundled demo model, on http://127.0.0.1:8000
  dovetail serve Qwen/Qwen3-8B --engine vllm --host 0.0.0.0 --api-key-file key
      a model of the hub on vLLM, started by this command; clients need the key
"""
_PLAN_EXAMPLES = """\
examples:
  dovetail plan Qwen/Qwen3-8B --gpus 1x24GB
      what would run on another machine
  dovetail plan deepseek-ai/DeepSeek-V3.2 --gpus '8x H200' --emit sglang
      a plan as a command for SGLang
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    command = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(command, help_all="--help-all" in words)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_unknown(parser, arguments.command, unknown)
    code = 0
    try:
        # Each command's module has a `run(arguments)`, which may return an exit code.
        code = import_module(f"dovetail.cli.{arguments.command}").run(arguments) or 0
        sys.stdout.flush()
    except DovetailError as error:
        print(f"dovetail: {_line(error.message)}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (such as `| head`) has closed the pipe; without this, Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, UnicodeError, RecursionError) as error:
        # A bad file name, file or terminal that no command checks for itself.
        print(f"dovetail: {type(error).__name__}: {_line(str(error))}", file=sys.stderr)
        return REFUSED
    return code


def _line(message: str) -> str:
    """`message` as one line without control characters: messages quote other people's files.

    A long message loses its middle, because the problem comes first and the remedy last.
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} […] {message[-_LONGEST // 4 :]}"
    return "".join(character if character.isprintable() else " " for character in message)


def _parser(command: str | None, *, help_all: bool) -> argparse.ArgumentParser:
    """The parser of all commands. `serve` and `plan` have their many options only if they are the `command` that runs.

    `help_all`: the help shows every option, and not only the common ones.
    """
    parser = argparse.ArgumentParser(prog="dovetail", description="Tool calls that stay exact at speculative speed.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "answer OpenAI requests over HTTP; without MODEL, with the bundled demo pair")
    plan = _command(commands, "plan", "show what `serve` would run, and where each value comes from")
    output = plan.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the plan as JSON")
    output.add_argument(
        "--emit", choices=("vllm", "sglang", "trtllm", "k8s"), help="print a command for another engine, or a manifest"
    )
    output.add_argument("--all", action="store_true", help="also show the settings that are left to the engine")
    for name, subparser, examples in (("serve", serve, _SERVE_EXAMPLES), ("plan", plan, _PLAN_EXAMPLES)):
        subparser.usage = f"dovetail {name} [MODEL] [--option VALUE …]"
        subparser.epilog = examples
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        if command == name:
            _add_plan_options(subparser, help_all=help_all, also_common=("gpus",) if name == "plan" else ())
    recipes = _command(commands, "recipes", "list the recipes (settings that are known to work), or show one")
    recipes.add_argument("name", metavar="NAME", nargs="?", help="the name of a recipe, or a file with your own")
    recipes.add_argument("--json", action="store_true", help="print JSON")

    render = _command(commands, "render", "show the prompt that a chat completions request becomes")
    render.add_argument("request", metavar="REQUEST.json", help="file with the request's body; - reads standard input")
    language = render.add_mutually_exclusive_group(required=True)
    language.add_argument("--model", metavar="PATH", help="checkpoint folder, for its format and its tokenizer")
    language.add_argument("--format", metavar="NAME", help="name of a format")
    output = render.add_mutually_exclusive_group()
    output.add_argument("--ids", action="store_true", help="print token ids instead of text; needs --model")
    output.add_argument(
        "--diff",
        metavar="TEMPLATE",
        help="compare the prompt with that of a chat template: a file, or `model` for the checkpoint's own template; "
        "exit code 1 if they differ",
    )
    render.add_argument("--json", action="store_true", help="print JSON: text, segments, repairs, and with --model ids")
    render.add_argument(
        "--no-repair",
        metavar="KIND[,KIND]|all",
        nargs="?",
        const="all",
        default="none",
        help="kinds of history repair to leave off, beside those that the request leaves off; without a KIND all",
    )
    render.add_argument(
        "--no-generation-prompt", action="store_true", help="do not end the prompt with the opening of an answer"
    )
    render.add_argument(
        "--continue-final-message",
        action="store_true",
        help="end the prompt inside the last message, which the answer continues",
    )

    parse = _command(
        commands, "parse", "read a model's whole output from standard input, and show its content, reasoning and calls"
    )
    parse.add_argument("--format", metavar="NAME", required=True, help="name of a format, or a checkpoint folder")
    parse.add_argument("--tools", metavar="FILE", help="file with the request's tools, as a JSON list")
    parse.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="whether the prompt ends inside a reasoning block (default: as prompts of the format do)",
    )
    parse.add_argument("--finish", choices=("stop", "length"), default="stop", help="how the output ended")
    parse.add_argument(
        "--repair-arguments", action="store_true", help="close the open strings and brackets of a call that is cut off"
    )
    parse.add_argument("--json", action="store_true", help="print JSON")

    lint = _command(
        commands, "lint", "list what no grammar enforces in the schemas of tools, and schemas that cannot be used"
    )
    lint.add_argument(
        "tools", metavar="TOOLS.json", help="file with a JSON list of tools or a request's body; - reads standard input"
    )
    family = lint.add_mutually_exclusive_group()
    family.add_argument(
        "--format", metavar="NAME", help="format in which calls are written (default: arguments are JSON)"
    )
    family.add_argument("--model", metavar="PATH", help="checkpoint folder whose format is used")
    lint.add_argument(
        "--for",
        dest="writer",
        choices=("lark", "structural_tag", "both"),
        default="both",
        help="the grammar's notation: lark for llguidance (the embedded engine, llama.cpp, vLLM with --grammar-backend "
        "guidance), structural_tag for xgrammar (vLLM, SGLang) (default: both)",
    )
    lint.add_argument("--json", action="store_true", help="print JSON")

    _command(commands, "version", "print the version")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, description: str
) -> argparse.ArgumentParser:
    # No abbreviations: a script that says --draft must not change its meaning when an option is added.
    return commands.add_parser(name, help=description, description=description, allow_abbrev=False)


#: The groups of settings in the order of the help, with their headings.
_HEADINGS = {
    "serving": "serving",
    "what runs": "what runs",
    "drafting": "drafting",
    "engine": "the engine",
    "machine": "the machine",
}


def _add_plan_options(parser: argparse.ArgumentParser, *, help_all: bool, also_common: Sequence[str]) -> None:
    """Add the settings of a plan as options. An option that is not on the command line is absent from the result.

    The help shows the common options and those in `also_common`, or every option with `help_all`.
    """
    # Takes a fifth of a second, which only these commands need.
    from dovetail.plan.options import OPTIONS

    hidden = None if help_all else argparse.SUPPRESS
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="checkpoint folder or hub id of a target, or of a speculators drafter"
    )
    parser.add_argument("--help-all", action="help", help="show every option and exit")
    parser.add_argument("--config", metavar="FILE", help=hidden or "YAML file with settings, named with underscores")
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE|none",
        help=hidden or "recipe to use (default: those that fit the model and the machine; see `dovetail recipes`)",
    )
    for group, heading in _HEADINGS.items():
        arguments = parser.add_argument_group(heading, argument_default=argparse.SUPPRESS)
        for option in OPTIONS:
            if option.group == group and option.command_line:
                option.add_to(arguments, in_help=help_all or option.common or option.name in also_common)


def _refuse_unknown(parser: argparse.ArgumentParser, command: str, unknown: Sequence[str]) -> None:
    """Exit as argparse does for unknown options, and suggest the nearest options that the command has."""
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    subparser: argparse.ArgumentParser = subparsers.choices[command]
    known = [option for action in subparser._actions for option in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    subparser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
