"""`python -m recipe_import CHECKOUT`: writes the imported recipes of Dovetail from a checkout of vLLM's."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from dovetail.plan import recipe
from dovetail.plan.recipe import Imported
from recipe_import import build, checkout, review

OUTPUT = recipe.FOLDER / "vllm-recipes.json"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe_import", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a clone of https://github.com/vllm-project/recipes, bare or not")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write (default: %(default)s)")
    arguments = parser.parse_args(words)
    try:
        result = build.imported(checkout.read(arguments.checkout), review.read())
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"recipe_import: {error}", file=sys.stderr)
        return 1
    arguments.output.write_bytes(written(result))
    covered = sum(bool(recipes) for recipes in result.covered.values())
    print(f"{result.commit} of {result.date}: {result.models} models, {len(result.covered)} with a speculative setup")
    print(f"{covered} of them covered, {len(result.recipes)} recipes written to {arguments.output}")
    for each in result.left_out:
        print(f"left out: {each.model}: {each.what}: {each.why}")
    return 0


def written(result: Imported) -> bytes:
    """The file of `result`, the same bytes for the same result. Fields without a value are not written."""
    content = msgspec.to_builtins(result)
    content["recipes"] = [_without_empty(recipe) for recipe in content["recipes"]]
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_empty(each) for key, each in value.items() if each is not None and each != [] and each != {}}


if __name__ == "__main__":
    sys.exit(main())
