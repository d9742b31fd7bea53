"""Run by another engine's Python: the answer of that engine's own argument parser to commands.

`accepts.py vllm|sglang` reads JSON, version -> name -> {"argv": […], "variables": […]}, and writes name -> null or what
is wrong, for those of the version that it has. Knows nothing of Dovetail, which is not there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import typing
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

Parse = Callable[[list[str], list[str]], None]


def vllm() -> tuple[str, Parse]:
    """The parser of `vllm serve`, and the checks that vLLM makes of single values later, without a model."""
    import pydantic
    from vllm import envs, version
    from vllm.config.speculative import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    top = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand()
    serve.subparser_init(top.add_subparsers(dest="subparser", required=True))
    members = typing.get_type_hints(SpeculativeConfig, include_extras=True)
    any_type = pydantic.ConfigDict(arbitrary_types_allowed=True)

    def parse(argv: list[str], variables: list[str]) -> None:
        assert argv[0] == "vllm", argv[0]
        arguments = top.parse_args(argv[1:])
        serve.validate(arguments)
        AsyncEngineArgs.from_cli_args(arguments)
        for name, value in (arguments.speculative_config or {}).items():
            assert name in members, f"--speculative-config has no member {name}"
            if name == "attention_backend":
                value = AttentionBackendEnum[value]
            pydantic.TypeAdapter(members[name], config=any_type).validate_python(value)
        for named, known in (
            (arguments.tool_call_parser, ToolParserManager.list_registered()),
            (arguments.reasoning_parser, ReasoningParserManager.list_registered()),
        ):
            assert not named or named in known, f"{named} is none of {known}"
        for name in variables:
            assert not name.startswith("VLLM_") or name in envs.environment_variables, f"{name} is not known"

    return version.__version__, parse


def sglang() -> tuple[str, Parse]:
    """The parser of `sglang.launch_server`. Two modules that parsing has no use for are made up: triton and IPython."""
    for name in ("triton", "triton.language", "IPython", "IPython.display"):
        sys.modules[name] = MagicMock()
    from importlib.metadata import version

    from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)

    def parse(argv: list[str], variables: list[str]) -> None:
        assert argv[:3] == ["python", "-m", "sglang.launch_server"], argv[:3]
        arguments = parser.parse_args(argv[3:])
        draft = arguments.speculative_draft_attention_backend
        assert draft is None or draft in DRAFT_ATTENTION_BACKEND_CHOICES, f"{draft} cannot be a drafter's"
        assert not any(name.startswith("VLLM_") for name in variables), variables

    return version("sglang"), parse


def main() -> None:
    cases: dict[str, dict[str, Any]] = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # engines talk while they are imported
        version, parse = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
        known = [of for of in cases if version.startswith(of)]
        if not known:
            sys.exit(f"this is {sys.argv[1]} {version}; there are commands for {', '.join(cases)}")
        verdicts = {name: judged(parse, case) for name, case in cases[known[0]].items()}
    json.dump(verdicts, sys.stdout)


def judged(parse: Parse, case: dict[str, Any]) -> str | None:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parse(case["argv"], case["variables"])
    except SystemExit:
        return errors.getvalue().strip().rpartition("\n")[2] or "it ended"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main()
