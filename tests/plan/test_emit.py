"""Plans as other engines' commands: the shell reads them, they parse back to the plan, and no setting is lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from dovetail.errors import PlanError
from dovetail.formats.registry import FAMILIES, NAMES
from dovetail.plan import resolve
from dovetail.plan.defaults import expected_acceptance
from dovetail.plan.emit import FORMS, Command, emitted, sglang, trtllm, vllm
from dovetail.plan.layers import Setting
from dovetail.plan.options import BY_NAME, GATE, OPTIONS, validated
from dovetail.plugins.vllm.gate_settings import GateSettings
from tests.examples import examples
from tests.plan.emit_plans import COMMANDS, DRAFTING, NASTY, RECIPES, flags_of, settings_of
from tests.plan.samples import SAMPLES

GOLDENS = Path(__file__).with_name("emitted")


def speculative(command: Command) -> dict[str, Any]:
    config = flags_of(command).get("--speculative-config")
    return json.loads(config) if config else {}


def left_out(command: Command) -> set[str]:
    """The names of the settings that the notes list as missing from the command."""
    notes = [note.removeprefix("not carried over: ") for note in command.notes if note.startswith("not carried")]
    of_gateway = [note.partition(": these are settings of")[0] for note in notes if "these are settings of" in note]
    return {note.split()[0] for note in notes} | {part.split()[0] for each in of_gateway for part in each.split(", ")}


@pytest.mark.parametrize("file", sorted(GOLDENS.iterdir()), ids=lambda file: file.name)
def test_whole_outputs(file: Path) -> None:
    name, _, form = file.name.rpartition(".")
    assert emitted(RECIPES[name], form) == file.read_text()


@pytest.mark.parametrize(
    ("settings", "version", "bounds"),
    [
        (settings_of(format="kimi_k25"), None, True),
        (settings_of(format="kimi_k25"), "0.32.0+cpu", True),
        (DRAFTING | settings_of(format="kimi_k25"), "0.32", True),
        (DRAFTING | settings_of(format="kimi_k25"), "0.32.0+cpu", False),
        (settings_of(format="kimi_k25", method="suffix", draft_tokens=3), None, False),
        (settings_of(format="kimi_k25", method="suffix", draft_tokens=0), None, True),
    ],
)
def test_budgets_of_reasoning_where_vllm_keeps_to_them(
    settings: dict[str, Setting[Any]], version: str | None, bounds: bool
) -> None:
    made = vllm.command(settings, version)
    config = flags_of(made).get("--reasoning-config")
    assert (config and json.loads(config)) == (
        {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"} if bounds else None
    )
    assert any("no budgets of reasoning" in note for note in made.notes) is not bounds


@pytest.mark.parametrize("name", ["kimi_k3", "harmony", "hermes", "no-such-format"])
def test_reasoning_that_vllm_cannot_close(name: str) -> None:
    assert "--reasoning-config" not in flags_of(vllm.command(settings_of(format=name)))


# --- The shell --------------------------------------------------------------------------------------------------------

_STUBS = r"""
vllm() { printf '%s\0' vllm "$@"; printf '%s\0' "$(printenv A)"; }
python() { printf '%s\0' python "$@"; printf '%s\0' "$(printenv A)"; }
trtllm-serve() { printf '%s\0' trtllm-serve "$@"; printf '%s\0' "$(printenv A)"; }
"""


def run_script(script: str, folder: Path) -> list[str]:
    """The words that the script's program gets, and then the variable A."""
    done = subprocess.run(
        ["bash", "-eu", "-c", _STUBS + script], capture_output=True, cwd=folder, env={"PATH": os.environ["PATH"]}
    )
    assert (done.returncode, done.stderr) == (0, b""), script
    return done.stdout.decode().removesuffix("\0").split("\0")


@examples(60)
@given(target=NASTY, name=NASTY, value=NASTY, gpus=NASTY)
@pytest.mark.parametrize("form", COMMANDS)
def test_the_shell_runs_the_command_word_for_word(
    tmp_path_factory: pytest.TempPathFactory, form: str, target: str, name: str, value: str, gpus: str
) -> None:
    plan = DRAFTING | settings_of(target=target, served_model_name=name, env={"A": value}, gpus=gpus)
    command = COMMANDS[form](plan)
    *argv, a = run_script(command.script(), tmp_path_factory.mktemp("shell"))
    assert argv == command.argv
    assert not any(word.startswith("-") and word in (name, target) for word in argv[3:])
    assert a == value.rstrip("\n")  # $(…) in the stub drops the newlines at the end


@pytest.mark.parametrize("form", COMMANDS)
def test_the_key_is_read_by_the_shell_and_not_written(tmp_path: Path, form: str) -> None:
    key = tmp_path / "it's a key"
    key.write_text("s3cret\n")
    command = COMMANDS[form](settings_of(api_key_file=str(key)))
    script = command.script()
    assert "s3cret" not in script
    words = run_script(script.replace("VLLM_API_KEY=", "A="), tmp_path)
    if form == "vllm":
        assert words == [*command.argv, "s3cret"]  # a variable, because every user can read the words
    elif form == "sglang":
        assert words[-2] == "--api-key=s3cret"  # one word, because a key may begin with a hyphen
        assert any("every user of the machine can read" in note for note in command.notes)
    else:
        assert "api_key_file" in left_out(command)


def test_the_options_file_is_written_before_the_program_starts(tmp_path: Path) -> None:
    command = trtllm.command(RECIPES["kimi-k2.5-sm120-dcp4"])
    run_script(command.script(), tmp_path)
    name = flags_of(command)["--config"]
    assert name is not None and (tmp_path / name).read_text() == command.files[name]
    assert "--config" not in flags_of(trtllm.command(settings_of()))


@pytest.mark.parametrize("form", FORMS)
def test_comments_are_short_and_printable(form: str) -> None:
    unprintable = {"api_key_file": "/keys/\x1b]0;me\x07", "no_repair": "\x1b[2J", "host": "h\x9b"}
    plans = [*RECIPES.values(), settings_of(**unprintable, env={"VLLM_USE_V1": "\x00"})]
    for plan in plans:
        comments = [line for line in emitted(plan, form).splitlines() if line.startswith("#")]
        assert comments and all(line.isprintable() for line in comments)
        assert all(len(line) <= 100 or "api-key" in line for line in comments)


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_never_another_flag(form: str) -> None:
    plan = settings_of(served_model_name="--trust-remote-code", revision="--api-key", load_format="-x", tokenizer="-y")
    script = "".join(line for line in emitted(plan, form).splitlines() if not line.startswith("#"))
    assert "--trust-remote-code" not in script.replace("=--trust-remote-code", "")
    if form != "llama.cpp":  # which has neither setting
        assert "--revision=--api-key" in script
        assert "--tokenizer" in script.replace("-path", "") and "=-y" in script


# --- Every setting is in the command, or listed as left out -----------------------------------------------------------


def parsed_back(form: str, command: Command) -> dict[str, Any]:
    """The settings in a command, by the names that `OPTIONS` declares; values are spelled as in the command."""
    flags, members = flags_of(command), speculative(command)
    file = msgspec.yaml.decode(next(iter(command.files.values()), "{}"))
    values: dict[str, Any] = {"target": command.start[-1]}
    for option in OPTIONS:
        name = option.engine_names.get(form, "")
        key, _, member = name.partition(".")
        if name.startswith("--speculative-config."):
            values[option.name] = members.get(member)
        elif name.startswith("--"):
            negated = {f"--no-{name[2:]}", name.replace("--enable-", "--disable-")} - {name}
            values[option.name] = flags[name] or True if name in flags else None if negated.isdisjoint(flags) else False
        elif form == "trtllm" and key in file:
            values[option.name] = file[key].get(member) if member else file[key]
    return values


#: Settings whose value an engine spells differently, or spreads over several options: see the goldens and below.
RESPELLED = {
    "vllm": {"method", "format", "gate", "max_draft_tokens", "api_key_file", "env", "engine_args"}
    | {"speculate_below_context", "speculate_up_to_batch"},
    "sglang": {"method", "format", "gate", "api_key_file", "env", "attention_backend", "draft_attention_backend"}
    | {"kv_cache_dtype", "draft_kv_cache_dtype", "draft_sampling", "async_scheduling", "prefix_caching"}
    | {"chunked_prefill", "mm_processor_cache_gb", "mm_encoder_tp_mode"},
    "trtllm": {"method", "format", "gate", "env", "kv_cache_dtype", "async_scheduling", "speculate_up_to_batch"},
}
#: Values that an engine has by default, so that the command does not contain them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "vllm": {"draft_tokens": 0, "gate": "off"},
    "sglang": {
        "draft_tokens": 0,
        "gate": "measured",
        "draft_sampling": "greedy",
        "draft_top_k": 1,
        "trust_remote_code": False,
    }
    | {"async_scheduling": True, "prefix_caching": True, "chunked_prefill": True, "language_model_only": False}
    | {"mm_encoder_tp_mode": "weights"},
    "trtllm": {"draft_tokens": 0, "gate": "off", "dtype": "auto", "trust_remote_code": False, "chunked_prefill": False},
}


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("form", COMMANDS)
def test_a_command_parses_back_to_the_plan(form: str, name: str) -> None:
    for value in SAMPLES[name]:
        check_that_it_parses_back(form, name, value)


def check_that_it_parses_back(form: str, name: str, value: Any) -> None:
    plan = {**DRAFTING, **settings_of(**{name: value})}
    command = COMMANDS[form](plan)
    missing, back = left_out(command), parsed_back(form, command)
    for each, setting in plan.items():
        default = each in DEFAULTS[form] and DEFAULTS[form][each] == setting.value
        if each not in missing and each not in RESPELLED[form] and each != "engine" and not default:
            assert msgspec.convert(back[each], BY_NAME[each].type, strict=False) == setting.value, each
    if name in RESPELLED[form] and name not in missing and DEFAULTS[form].get(name, object()) != value:
        others = {each: setting for each, setting in DRAFTING.items() if each != name}
        assert command.script() != COMMANDS[form](others).script()


@pytest.mark.parametrize("form", FORMS)
def test_an_unset_setting_is_not_written(form: str) -> None:
    unset = {option.name: None for option in OPTIONS if option.nullable}
    assert emitted(settings_of(**unset), form) == emitted(settings_of(), form)


def test_notes_say_why_a_setting_is_left_out() -> None:
    notes = vllm.command(settings_of(new_setting={"a": 1})).notes
    assert notes == ('not carried over: new_setting {"a": 1}: vLLM has no such setting',)
    notes = sglang.command(settings_of(strict="schema", no_repair="none")).notes
    gateway = "these are settings of Dovetail's gateway; run `dovetail serve --engine URL` in front of SGLang"
    assert notes == (f"not carried over: strict schema, no_repair none: {gateway}",)


@pytest.mark.parametrize("form", COMMANDS)
def test_a_format_has_the_engines_own_parsers_or_is_left_out(form: str) -> None:
    for name in NAMES:
        command = COMMANDS[form](settings_of(format=name))
        parsers = getattr(FAMILIES.get(name), f"{form}_parsers", None)
        assert (parsers is None) == ("format" in left_out(command))
        assert parsers is None or {each for each in parsers if each} <= set(flags_of(command).values())


@pytest.mark.parametrize("form", ["sglang", "trtllm"])
def test_options_of_vllm_alone_are_left_out(form: str) -> None:
    limits = {name: SAMPLES[name][0] for name in GATE}
    command = COMMANDS[form](DRAFTING | settings_of(**limits, env={"VLLM_LOG_STATS_INTERVAL": 1, "A": "SYS"}))
    assert command.argv == COMMANDS[form](DRAFTING).argv
    in_place = {"sglang": {"gate"}, "trtllm": {"gate", "speculate_up_to_batch"}}[form]
    assert left_out(command) >= set(GATE) - in_place
    assert command.variables == {"A": "SYS"}
    assert "not carried over: VLLM_LOG_STATS_INTERVAL=1: another engine's variable" in command.notes


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'docker', only for vllm, sglang, trtllm, llama.cpp, helm"):
        emitted(settings_of(), "docker")


# --- vLLM -------------------------------------------------------------------------------------------------------------


def test_a_reasoning_parser_comes_with_a_note() -> None:
    """`dovetail serve --engine URL` refuses it; the option that would let it pass spoils vLLM's own endpoint."""
    for name in FAMILIES:
        command = vllm.command(settings_of(format=name))
        noted = any(note.startswith("--reasoning-parser is for vLLM's own chat endpoint") for note in command.notes)
        assert noted == ("--reasoning-parser" in flags_of(command))
        assert not any("enable_in_reasoning" in word for word in command.argv)


def test_guidance_comes_with_a_note() -> None:
    for backend in ("guidance", "xgrammar"):
        command = vllm.command(settings_of(format="hermes", grammar_backend=backend))
        assert (backend == "guidance") == any("vLLM's own chat endpoint refuses" in note for note in command.notes)


def test_variables_that_vllm_removed_are_left_out() -> None:
    command = vllm.command(RECIPES["kimi-k2.5-sm120-dcp4"])
    removed = [note.split("=")[0].split(": ")[1] for note in command.notes if ": VLLM_" in note]
    assert removed == ["VLLM_ENABLE_PCIE_ALLREDUCE", "VLLM_TEST_FORCE_FP8_MARLIN"]
    assert not command.variables.keys() & set(removed)
    assert vllm.command(settings_of(env={"A": None})).variables == {}


def gate_of(command: Command) -> dict[str, Any] | None:
    """The settings of the gate inside vLLM, None if vLLM's own scheduler runs."""
    flags = flags_of(command)
    assert ("--scheduler-cls" in flags) == ("--additional-config" in flags)
    if "--scheduler-cls" not in flags:
        return None
    assert flags["--scheduler-cls"] == "dovetail.plugins.vllm.GatedScheduler"
    assert any("pip install dovetail[vllm]" in note for note in command.notes)
    config: dict[str, dict[str, Any]] = json.loads(flags["--additional-config"] or "")
    assert config.keys() == {"dovetail"} and msgspec.convert(config["dovetail"], GateSettings)
    return config["dovetail"]


def test_the_gate_is_dovetails_scheduler_inside_vllm() -> None:
    limits = {"speculate_below_context": 7000, "speculate_up_to_batch": 16}
    assert gate_of(vllm.command(DRAFTING | settings_of(**limits, max_batch=64))) == {"gate": "off"} | limits
    assert gate_of(vllm.command(DRAFTING | settings_of(gate="measured"))) == {"gate": "measured"}
    for other in ({}, {"gate": "off"}, {"max_draft_tokens": 3}):
        ungated = vllm.command(DRAFTING | settings_of(**other))
        assert gate_of(ungated) is None and not left_out(ungated)
        assert speculative(ungated) == speculative(vllm.command(DRAFTING))
    assert gate_of(vllm.command(settings_of(gate="measured"))) is None  # nothing drafts


@pytest.mark.usefixtures("no_gpus")
def test_the_gate_begins_with_what_the_drafters_recipe_has_measured() -> None:
    """The demo's recipe has acceptance lengths; a drafter that the user names has none, nor has a gate that is off."""
    drafter = resolve(None, {}).settings["drafter"]
    acceptance = expected_acceptance({"drafter": drafter})
    measured = DRAFTING | {"drafter": drafter} | settings_of(gate="measured")
    assert acceptance is not None
    assert gate_of(vllm.command(measured)) == {"gate": "measured", "acceptance": pytest.approx(acceptance, abs=1e-4)}
    named = measured | {"drafter": Setting(drafter.value, "command line")}
    assert gate_of(vllm.command(named)) == {"gate": "measured"}
    off = measured | settings_of(gate="off", speculate_up_to_batch=2)
    assert gate_of(vllm.command(off)) == {"gate": "off", "speculate_up_to_batch": 2}


def test_vllm_drafts_as_much_as_the_gate_may_choose() -> None:
    measured = vllm.command(DRAFTING | settings_of(gate="measured", max_draft_tokens=8))
    assert speculative(measured)["num_speculative_tokens"] == 8
    assert gate_of(measured) == {"gate": "measured", "draft_tokens": 3}
    always = vllm.command(DRAFTING | settings_of(gate="off", max_draft_tokens=8))
    assert speculative(always)["num_speculative_tokens"] == 3 and "max_draft_tokens" in left_out(always)


def test_lookup_runs_on_the_gpu_and_says_why() -> None:
    """On the CPU it takes vLLM's asynchronous scheduling away; a build for CPUs has no other."""
    command = vllm.command(settings_of(method="ngram", draft_tokens=3))
    assert speculative(command)["method"] == "ngram_gpu"
    assert any("takes asynchronous scheduling away" in note for note in command.notes)
    assert speculative(vllm.command(settings_of(method="ngram", draft_tokens=3), "0.32.0+cpu"))["method"] == "ngram"


def test_a_parser_that_a_version_has_not_is_left_out() -> None:
    new, old = (vllm.command(settings_of(format="beam"), version) for version in ("0.33", "0.32"))
    assert ("--tool-call-parser", "beam") in new.arguments and ("--tool-call-parser", "beam") not in old.arguments
    assert "not carried over: format beam: vLLM 0.32 has no parser for it" in old.notes


def test_probabilistic_drafts_are_tested_as_a_block_where_vllm_can() -> None:
    method = "rejection_sample_method"
    drawn = DRAFTING | settings_of(draft_sampling="probabilistic")
    command = vllm.command(drawn)
    assert speculative(command)[method] == "block" and any("changes no distribution" in note for note in command.notes)
    assert speculative(vllm.command(drawn | settings_of(draft_acceptance="standard")))[method] == "standard"
    for other, version in ((DRAFTING, None), (drawn, "0.32.0+cpu"), (drawn | settings_of(method="peagle"), None)):
        assert method not in speculative(vllm.command(other, version))


@pytest.mark.parametrize("word", ["fly", "synthetic"])
def test_a_lossy_acceptance_is_refused(word: str) -> None:
    with pytest.raises(
        PlanError, match=f"draft_acceptance is '{word}': {word} accepts drafts that the model would not"
    ):
        validated({"draft_acceptance": word}, "command line", Path())


def test_dspark_on_sm100_adapts_by_itself_where_the_gate_is_not() -> None:
    dspark = settings_of(method="dspark", drafter="a/drafter", draft_tokens=7)
    for gpus, adapts in (("8x B200", True), ("8x H100", False), ("8x 96GB", False), (None, False)):
        assert (
            speculative(vllm.command(dspark | settings_of(gpus=gpus))).get("enable_adaptive_verification", False)
            is adapts
        )
    gated = vllm.command(dspark | settings_of(gpus="8x B200", gate="measured"))
    assert "enable_adaptive_verification" not in speculative(gated)
    assert any("--gate off takes vLLM's" in note for note in gated.notes)


def test_sglang_adapts_where_it_can_and_the_plan_says_which_is_better() -> None:
    for method, more, adapts in (
        ("eagle3", {}, True),
        ("mtp", {}, True),
        ("eagle3", {"gate": "off"}, False),
        ("eagle3", {"draft_top_k": 4}, False),
        ("ngram", {}, False),
    ):
        command = sglang.command(settings_of(method=method, draft_tokens=3, **more))
        assert ("--speculative-adaptive" in command.argv) is adapts
        assert any("it is better where drafts are seldom accepted" in note for note in command.notes) is adapts


def test_tensorrt_llm_gets_a_threshold_and_a_batch_in_place_of_the_gate() -> None:
    plan = settings_of(method="eagle3", drafter="a/drafter", draft_tokens=3, gate="measured", speculate_up_to_batch=8)
    command = trtllm.command(plan)
    config = msgspec.yaml.decode(command.files["trtllm.yaml"])["speculative_config"]
    assert (
        config.items()
        >= {"acceptance_rate_threshold": 0.1, "acceptance_rate_window_size": 1000, "max_concurrency": 8}.items()
    )
    assert any("for good" in note and "is better" in note for note in command.notes)
    off = trtllm.command(plan | settings_of(gate="off", speculate_up_to_batch=None))
    assert msgspec.yaml.decode(off.files["trtllm.yaml"])["speculative_config"].keys() & {*config} < {*config} - {
        "max_concurrency"
    }


def test_vllm_refuses_probabilistic_drafts_with_local_argmax() -> None:
    both = vllm.command(DRAFTING | settings_of(draft_sampling="probabilistic", local_argmax=True))
    assert speculative(both).keys() >= {"use_local_argmax_reduction"} and left_out(both) == {"draft_sampling"}


@pytest.mark.parametrize(
    ("version", "values", "config"),
    [
        ("0.33", {"method": "mtp"}, {"method": "mtp"}),
        ("0.33", {"method": "suffix"}, {"method": "suffix"}),
        ("0.33", {"method": "peagle"}, {"method": "eagle3", "parallel_drafting": True}),
        ("0.33", {"method": "ngram"}, {"method": "ngram_gpu", "prompt_lookup_max": 8, "prompt_lookup_min": 8}),
        (
            "0.33",
            {"method": "ngram", "prompt_lookup_min": 12},
            {"method": "ngram_gpu", "prompt_lookup_max": 12, "prompt_lookup_min": 12},
        ),
        ("0.32", {"method": "medusa"}, {"method": "medusa"}),
        ("0.33", {"method": "medusa"}, None),
        ("0.33", {"method": "mlp_speculator"}, None),
        ("0.33", {"method": "domino"}, None),
    ],
)
def test_methods_by_vllms_names(version: str, values: dict[str, Any], config: dict[str, Any] | None) -> None:
    command = vllm.command(settings_of(draft_tokens=3, **values), version)
    assert speculative(command) == ({} if config is None else config | {"num_speculative_tokens": 3})
    assert (config is None) == any(f"does not know the method {values['method']}" in note for note in command.notes)


def test_a_drafter_without_draft_tokens_is_left_out() -> None:
    command = vllm.command(DRAFTING | settings_of(draft_tokens=0, draft_sampling="greedy"))
    assert speculative(command) == {}
    assert left_out(command) == {"drafter", "method", "draft_sampling"}


@pytest.mark.parametrize(
    ("version", "flag", "is_newer"),
    [
        ("0.32.0", "--no-enable-prefix-caching", False),
        ("0.32.1+cpu", "--no-enable-prefix-caching", False),
        ("v0.33.0", "--disable-prefix-caching", False),
        (None, "--disable-prefix-caching", False),
        ("0.34.0rc1", "--disable-prefix-caching", True),
        ("0.330", "--disable-prefix-caching", True),
        ("1.0", "--disable-prefix-caching", True),
    ],
)
def test_commands_are_for_a_version(version: str | None, flag: str, is_newer: bool) -> None:
    command = vllm.command(settings_of(prefix_caching=False, async_scheduling=False), version)
    assert flags_of(command).keys() >= {flag, "--no-async-scheduling"}
    note = f"vLLM {version} is newer than any that was tried, so this command is for 0.33"
    assert (note in command.notes) == is_newer


@pytest.mark.parametrize(
    ("version", "message"), [("0.19.1", "vLLM 0.19.1 is older than"), ("new", "'new' is not a version of vLLM")]
)
def test_a_version_that_cannot_be_written_for(version: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        vllm.command(settings_of(), version)


# --- SGLang -----------------------------------------------------------------------------------------------------------


def test_sglang_counts_the_targets_own_token_too() -> None:
    for branches, tokens in ((None, "4"), (4, "13")):
        flags = flags_of(sglang.command(DRAFTING | settings_of(draft_top_k=branches)))
        assert (flags["--speculative-num-steps"], flags["--speculative-num-draft-tokens"]) == ("3", tokens)


@pytest.mark.parametrize(
    ("chunked", "flags"),
    [
        (False, {"--chunked-prefill-size": "-1", "--max-prefill-tokens": "4096"}),
        (True, {"--chunked-prefill-size": "4096"}),
    ],
)
def test_sglang_prefill(chunked: bool, flags: dict[str, str]) -> None:
    command = sglang.command(settings_of(chunked_prefill=chunked, max_batched_tokens=4096))
    assert flags_of(command) == {"--model-path": "Qwen/Qwen3-8B"} | flags
