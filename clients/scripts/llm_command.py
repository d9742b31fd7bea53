"""llm: its command line, with the model declared in its own file, on chat completions or completions."""

import json
import os
import subprocess
import sys
from pathlib import Path

from common import COUNT, HELLO, KEY, MODEL, PERSON_REQUEST, SCHEMA, URL, WEATHER, feature, main

API = os.environ["DOVETAIL_API"]
FOLDER = Path("llm").absolute()
FOLDER.mkdir(exist_ok=True)
# JSON is YAML.
(FOLDER / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {
                "model_id": "served",
                "model_name": MODEL,
                "api_base": URL,
                "api_key_name": "served",
                "can_stream": True,
                **({"completion": True} if API == "completions" else {"supports_tools": True, "supports_schema": True}),
            }
        ]
    )
)
TOOL = (
    'import json\ndef get_weather(city: str) -> str:\n    "Get the weather"\n    return json.dumps({"result": "red"})\n'
)
OPTIONS = ["-o", "temperature", "0", "-o", "max_tokens", "200"]


def ask(text, *options):
    command = [Path(sys.executable).parent / "llm", "prompt", "-m", "served", "--key", KEY, *OPTIONS, *options, text]
    done = subprocess.run(command, env={**os.environ, "LLM_USER_PATH": str(FOLDER)}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done


@feature
def plain():
    return ask(HELLO, "--no-stream").stdout.strip()


@feature
def stream():
    """By its Python interface, because the command's output does not show where a piece ends."""
    os.environ["LLM_USER_PATH"] = str(FOLDER)
    import llm

    pieces = [piece for piece in llm.get_model("served").prompt(COUNT, key=KEY, temperature=0, max_tokens=200) if piece]
    return {"text": "".join(pieces), "pieces": len(pieces)}


if API == "chat":  # it shows no usage of completions

    @feature
    def usage():
        line = ask(HELLO, "--usage", "--no-stream").stderr
        words = line.replace(",", "").split()
        return [int(words[words.index("input") - 1]), int(words[words.index("output") - 1])]

    @feature
    def call():
        line = ask(WEATHER, "--functions", TOOL, "--td", "--no-stream").stderr
        name, _, arguments = line.partition("Tool call: ")[2].splitlines()[0].partition("(")
        return [[name, json.loads(arguments.rstrip(")").replace("'", '"'))]]

    @feature
    def result():
        return ask(WEATHER, "--functions", TOOL).stdout.strip()

    @feature
    def structured():
        return json.loads(ask(PERSON_REQUEST, "--schema", json.dumps(SCHEMA), "--no-stream").stdout)


@feature
def bad_field():
    try:
        ask(HELLO, "--no-stream", "-o", "top_p", "0")
    except RuntimeError as error:
        return str(error)


main()
