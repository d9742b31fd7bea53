"""Formats by name, and by what lies in a checkpoint's folder: which, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.errors import CheckpointError, RenderError, UnknownFormat
from dovetail.formats.registry import FAMILIES, NAMES, served_format
from tests import gguf_files
from tests.formats.chat_templates import HERMES, PLAIN, QWEN3, SMALL_CONTROLS
from tests.formats.conversations import TOOLS, user
from tests.formats.test_differencing import CONTROLS, LISTED

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
KIMI = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>")
KIMI_CALLS = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)


def checkpoint(folder: Path, *controls: str, template: Any = None, **files: Any) -> Path:
    """A folder with a tokenizer that has `controls`, a chat template, and other files by name."""
    added = [{"id": i, "content": literal, "special": True} for i, literal in enumerate(controls)]
    if added:
        files.setdefault("tokenizer", {"added_tokens": added, "model": {"vocab": {"a": 1}}})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


# -- by name ----------------------------------------------------------------------------------------------------------


def test_by_name() -> None:
    assert [dovetail.format(name).name for name in FAMILIES] == list(FAMILIES)
    assert list(NAMES) == [*FAMILIES, "jinja"]
    assert dovetail.format("kimi_k25").because == ""


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(
        UnknownFormat, match=r"no format or checkpoint folder 'kimmi'; the formats are kimi_k2, .*, jinja"
    ):
        dovetail.format("kimmi")


def test_jinja_needs_a_checkpoint() -> None:
    with pytest.raises(UnknownFormat, match="made of a chat template: give the folder"):
        dovetail.format("jinja")


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(UnknownFormat, match="is a file: give the folder of its checkpoint"):
        dovetail.format(tmp_path / "chat_template.jinja")


# -- by name, for a checkpoint ----------------------------------------------------------------------------------------

NOT_NATIVE = [name for name, family in FAMILIES.items() if not family.renders()]


@pytest.mark.parametrize(("name", "template"), [("hermes", HERMES), ("qwen3", QWEN3)])
def test_a_family_without_prompts_gets_the_checkpoints_template(tmp_path: Path, name: str, template: str) -> None:
    folder = checkpoint(tmp_path, *SMALL_CONTROLS, template=template)
    fmt = served_format(name, folder)
    assert fmt.render([user("Hi.")]).text == "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    call = fmt.parse('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', TOOLS)
    assert [each.name for each in call.calls] == ["get_weather"]


@pytest.mark.parametrize("name", NOT_NATIVE)
def test_a_family_without_prompts_is_refused_for_another_template(tmp_path: Path, name: str) -> None:
    """Its server would refuse every request."""
    with pytest.raises(CheckpointError, match=f"^{name} has no prompts of its own.* has none: add chat_template.jinja"):
        served_format(name, checkpoint(tmp_path, *SMALL_CONTROLS))
    checkpoint(tmp_path, template=PLAIN)
    with pytest.raises(CheckpointError, match=f"is not {name}'s: .* shows no calls.*Leave --format out"):
        served_format(name, tmp_path)
    checkpoint(tmp_path, template=QWEN3)
    if name != "qwen3":
        with pytest.raises(CheckpointError, match=f"is not {name}'s: .* it shows calls as qwen3 reads them"):
            served_format(name, tmp_path)


def test_a_family_with_prompts_needs_no_template(tmp_path: Path) -> None:
    assert len(NOT_NATIVE) > 30
    for name in FAMILIES.keys() - set(NOT_NATIVE):
        assert served_format(name, tmp_path).name == name


# -- without a template -----------------------------------------------------------------------------------------------


def test_the_demo_pair() -> None:
    """It is found without the template engine and the tokenizer's library, which take longest to load."""
    code = """import sys, dovetail; from pathlib import Path
fmt = dovetail.format(Path(dovetail.__file__).parent / "data/demo/target")
print(fmt.name, fmt.because, {"jinja2", "tokenizers", "tiktoken"} & sys.modules.keys())"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.startswith("kimi_k25 it has no chat template, and its tokenizer has <|im_middle|>, ")
    assert output.endswith(" set()\n")


def test_by_what_config_json_says(shared_data: Path) -> None:
    fmt = dovetail.format(shared_data / "tokenizers/kimi_k25")
    assert fmt.name == "kimi_k25"
    assert fmt.because == "its config.json says kimi_k25, and it has no chat template"


@pytest.mark.parametrize(
    ("controls", "name"),
    [
        ((*KIMI, *KIMI_CALLS, "<think>", "</think>", "<|media_begin|>"), "kimi_k25"),
        ((*KIMI, *KIMI_CALLS, "<think>", "</think>"), "kimi_k2_thinking"),
        ((*KIMI, *KIMI_CALLS), "kimi_k2"),
        (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3"),
        (("<|start|>", "<|channel|>", "<|message|>", "<|call|>"), "harmony"),
        (("｜DSML｜", "<｜System｜>"), "deepseek_v41"),
        (("<|message_model|>", "<|content_invoke_tool_json|>", "<|content_model_end_sampling|>"), "inkling"),
    ],
)
def test_by_control_tokens(tmp_path: Path, controls: tuple[str, ...], name: str) -> None:
    config = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
    fmt = dovetail.format(checkpoint(tmp_path, *controls, config=config))
    assert fmt.name == name
    assert fmt.because.startswith("it has no chat template, and its tokenizer has ")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "deepseek_v32"}, "deepseek_v32"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "deepseek_v32"),
        ({"model_type": None, "architectures": ["DeepseekV4ForCausalLM"]}, "deepseek_v4"),
    ],
)
def test_by_model_and_architecture(shared_data: Path, tmp_path: Path, config: dict[str, Any], name: str) -> None:
    tokenizer = json.loads((shared_data / "tokenizers/deepseek_v3/tokenizer.json").read_text(encoding="utf-8"))
    literals = [token["content"] for token in tokenizer["added_tokens"]]
    fmt = dovetail.format(checkpoint(tmp_path, *literals, "｜DSML｜", config=config))
    assert fmt.name == name
    with_system = checkpoint(tmp_path, *literals, "｜DSML｜", "<｜System｜>", config=config)
    assert dovetail.format(with_system).name == ("deepseek_v41" if name == "deepseek_v4" else name)


@pytest.mark.parametrize("xml", ["<|content_xml|>", "<|unused_200024|>"])
def test_inkling_s_tokenizers_have_two_names_for_a_token(tmp_path: Path, xml: str) -> None:
    roles = (f"<|message_{role}|>" for role in ("model", "user", "system", "tool"))
    kinds = (f"<|content_{kind}|>" for kind in ("text", "thinking", "invoke_tool_json", "model_end_sampling"))
    config = {"model_type": "inkling_model", "architectures": ["InklingForCausalLM"]}
    fmt = dovetail.format(checkpoint(tmp_path, *roles, *kinds, "<|end_message|>", xml, config=config))
    assert (fmt.name, fmt.because) == ("inkling", "its config.json says inkling_model, and it has no chat template")
    assert f"tool_declare{xml}[" in fmt.render([{"role": "user", "content": "hi"}], TOOLS).text


def test_a_tokenizer_that_is_another_model_s(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, *KIMI, *KIMI_CALLS[1:], config={"model_type": "kimi_k25"})
    with pytest.raises(CheckpointError, match=r"config.json says kimi_k25, but the tokenizer lacks </think>, <think>"):
        dovetail.format(folder)


def test_an_unknown_checkpoint_is_refused_with_what_was_tried(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither tokenizer.json nor tokenizer_config.json declares"):
        dovetail.format(tmp_path)
    with pytest.raises(CheckpointError, match=r"no chat template \(chat_template.jinja.*--format: kimi_k2, "):
        dovetail.format(shared_data / "tokenizers/deepseek_v3")


# -- by template ------------------------------------------------------------------------------------------------------


@pytest.fixture
def kimi(shared_data: Path, tmp_path: Path) -> Path:
    """Kimi K2.5's folder as it is published, but for the vocabulary and the weights."""
    source = shared_data / "tokenizers/kimi_k25"
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    template = (shared_data / "render/kimi_k25/chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return tmp_path


def test_a_format_that_writes_what_the_template_does(kimi: Path) -> None:
    fmt = dovetail.format(kimi)
    assert (fmt.name, fmt.because) == ("kimi_k25", "it writes what the checkpoint's chat_template.jinja does")


def test_a_template_that_was_changed(kimi: Path) -> None:
    template = (kimi / "chat_template.jinja").read_text(encoding="utf-8")
    (kimi / "chat_template.jinja").write_text(template.replace("## Return of", "## Result of"), encoding="utf-8")
    fmt = dovetail.format(kimi)
    assert (fmt.name, fmt.family_name) == ("jinja", "kimi_k25")  # type: ignore[attr-defined]
    assert "shows calls as kimi_k25 reads them ('<|tool_calls_section_begin|><|tool_call_begin|>" in fmt.because
    assert (
        "kimi_k25 differs: a call: it writes 'turn of functions.search:0\\nfound 0<|im_e', "
        "and the template 'sult of functions.search:0\\nfound 0<|im_e'" in fmt.because
    )
    assert fmt.history_rules.call_id is not None
    assert fmt.history_rules.call_id("search", 3) == "functions.search:3"
    (kimi / "chat_template.jinja").write_text("{{ raise_exception('no') }}" + template, encoding="utf-8")
    assert "kimi_k25 differs: a question: the template refuses that" in dovetail.format(kimi).because


def test_a_template_in_place_of_code_is_not_the_model_s_own(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = (shared_data / "tokenizers/deepseek_v3/tokenizer.json").read_text(encoding="utf-8")
    template = (shared_data / "templates/llama.cpp/deepseek-ai-DeepSeek-V3.2.jinja").read_text(encoding="utf-8")
    files = {"tokenizer": json.loads(tokenizer), "template": template}
    fmt = dovetail.format(checkpoint(tmp_path, **files, config={"model_type": "deepseek_v32"}))
    assert fmt.name == "deepseek_v32"
    assert fmt.because.startswith("its config.json says deepseek_v32, whose prompts come from code")
    # Without that word it is a template like any other.
    fmt = dovetail.format(checkpoint(tmp_path, **files, config={"model_type": "deepseek_v3"}))
    assert (fmt.name, fmt.family_name) == ("jinja", "deepseek_v32")  # type: ignore[attr-defined]


def test_a_template_of_an_unknown_model(tmp_path: Path) -> None:
    fmt = dovetail.format(
        checkpoint(
            tmp_path,
            *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|stop|>"),
            template=CHATML,
            config={"model_type": "new", "eos_token_id": 2, "time_step_limit": [0.0, float("inf")]},
            generation_config={"eos_token_id": [1, 3, 99]},
            tokenizer_config={"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "model_max_length": 10**30},
        )
    )
    assert fmt.name == "jinja" and fmt.reads_calls
    own = "it has a chat_template.jinja of its own; "
    assert (
        fmt.because == f"{own}it shows no tools: they, calls and results are text in a generic layout ('<tool_call>')"
    )
    without = dovetail.format(tmp_path, generic_tools=False)
    assert without.because == (
        f"{own}tool calls are not read, because the chat template shows no calls: a history with a call renders like "
        "one without"
    )
    assert not without.reads_calls
    assert fmt.end_of_turn == ("<|im_end|>", "<|endoftext|>", "<|stop|>")
    assert fmt.render([user("Hi.")]).pieces[1::2] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_added_tokens_of_whitespace_are_text(tmp_path: Path) -> None:
    """Gemma's tokenizer has one for each number of line breaks; the break behind an end of turn is no end itself."""
    fmt = dovetail.format(checkpoint(tmp_path, *SMALL_CONTROLS, "\n", "\n\n", template=HERMES))
    assert fmt.end_of_turn == ("<|im_end|>",)
    assert fmt.parse("One.\n\nTwo.\n", TOOLS).content == "One.\n\nTwo.\n"


def test_a_template_whose_calls_are_derived(tmp_path: Path) -> None:
    fmt = dovetail.format(checkpoint(tmp_path, *CONTROLS, template=LISTED))
    assert fmt.because == (
        "it has a chat_template.jinja of its own; the layout of its calls was derived by differencing "
        """('<|calls|>[{"tool": "')"""
    )


@pytest.mark.parametrize("declared", ["string", "list", "mapping", "processor", "files"])
def test_where_templates_lie(tmp_path: Path, declared: str) -> None:
    """One for all requests, or one of them for those with tools."""
    plain, tools = "{{ eos_token }}plain " + CHATML, "{{ eos_token }}tools " + CHATML
    both: dict[str, Any] = {
        "string": {"chat_template": plain},
        "list": {"chat_template": [{"name": n, "template": t} for n, t in (("default", plain), ("tool_use", tools))]},
        "mapping": {"chat_template": {"tool_use": tools, "default": plain}},
        "processor": {},
        "files": {"chat_template": "{{ raise_exception('a file comes first') }}"},
    }[declared]
    folder = checkpoint(
        tmp_path,
        *("<|im_start|>", "<|im_end|>"),
        tokenizer_config={**both, "eos_token": "<|im_end|>"},
        **({"chat_template": {"chat_template": plain}} if declared == "processor" else {}),
    )
    if declared == "files":
        (folder / "chat_template.jinja").write_text(plain)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(tools)
    fmt = dovetail.format(folder)
    assert fmt.render([user()]).text.startswith("<|im_end|>plain")
    two = declared in ("list", "mapping", "files")
    assert fmt.render([user()], TOOLS).text.startswith("<|im_end|>tools" if two else "<|im_end|>plain")
    where = {"files": "tool_use.jinja", "processor": "chat_template in chat_template.json"}
    assert f"it has a {where.get(declared, 'chat_template in tokenizer_config.json')} of its own" in fmt.because


def test_one_template_for_tools_is_for_all(tmp_path: Path) -> None:
    config = {"chat_template": {"tool_use": CHATML}}
    fmt = dovetail.format(checkpoint(tmp_path, "<|im_end|>", tokenizer_config=config))
    assert fmt.render([user()]).text.startswith("<|im_start|>user")
    config = {"chat_template": {"rag": CHATML, "other": CHATML}}
    with pytest.raises(CheckpointError, match="none of its chat templates is called default: rag, other"):
        dovetail.format(checkpoint(tmp_path, "<|im_end|>", tokenizer_config=config))


# -- broken files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer_config", "tokenizer", "config", "generation_config"])
def test_files_that_are_broken_are_named(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path, "<|im_end|>", template=CHATML)
    for broken in (b"{", b"\xff\xfe", b'{"a":' * 100_000):
        (folder / f"{name}.json").write_bytes(broken)
        with pytest.raises(CheckpointError, match=rf"{name}.json cannot be read as (JSON|a tokenizer)"):
            dovetail.format(folder)
    for odd in ({"added_tokens": [1], "added_tokens_decoder": {"a": 1}, "eos_token_id": "two"}, [], 1):
        (folder / f"{name}.json").write_text(json.dumps(odd))
        with pytest.raises(
            CheckpointError,
            match=rf"{name}.json(:| is not a tok| cannot be read as a tok| must hold a)",
        ):
            dovetail.format(folder)


def test_templates_that_cannot_be_used(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "<|im_end|>", template="{% if %}")
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        dovetail.format(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja cannot be read as text"):
        dovetail.format(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}" * 500_000)
    with pytest.raises(CheckpointError, match=r"7,000,000 characters: at most 65,536 are read"):
        dovetail.format(folder)


@pytest.mark.slow
@pytest.mark.untraced  # ten seconds with it
def test_a_template_with_endless_loops_is_stopped(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "<|im_end|>")
    loop, end = "{% for i in range(99999) %}", "{% endfor %}"
    (folder / "chat_template.jinja").write_text(loop * 2 + end * 2)
    with pytest.raises(CheckpointError, match="loops more than"):
        dovetail.format(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_native_format_writes_prompts_and_no_other_does(name: str) -> None:
    fmt = dovetail.format(name)
    if fmt.is_native:
        assert "zq" in fmt.render([user("zq")]).text
    else:
        with pytest.raises(RenderError, match="chat template"):
            fmt.render([user("zq")])


def test_a_gguf_file_has_the_format_of_its_own_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf_files.write(tmp_path / "tiny.gguf")
    prompt = dovetail.format(tmp_path / "tiny.gguf").render([{"role": "user", "content": "the 12"}], None)
    assert prompt.text == "<|im_start|>user\nthe 12<|im_end|>\n<|im_start|>assistant\n"
