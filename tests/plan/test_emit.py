"""A plan as another engine's command: the shell reads it, the engine's own parser takes it, and nothing is dropped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import CheckpointError, PlanError
from dovetail.formats.registry import FAMILIES, NAMES
from dovetail.plan import hub, recipe, resolve
from dovetail.plan.emit import FORMS, Command, emitted, sglang, trtllm, vllm
from dovetail.plan.emit.command import engine_parsers
from dovetail.plan.layers import Layer, Setting, overlay
from dovetail.plan.options import GATE, OPTIONS
from dovetail.plugins.vllm.settings import Settings
from tests.plan.made import DEEPSEEK_V32, KIMI_EAGLE3_MLA, KIMI_K25, QWEN3_8B, QWEN3_8B_EAGLE3, write
from tests.plan.samples import SAMPLES

COMMANDS = {"vllm": vllm.command, "sglang": sglang.command, "trtllm": trtllm.command}
Plan = dict[str, Setting[Any]]


def plan(**values: Any) -> Plan:
    return {name: Setting(value, "test") for name, value in ({"target": "Qwen/Qwen3-8B"} | values).items()}


DRAFTING = plan(drafter="RedHatAI/Qwen3-8B-speculator.eagle3", method="eagle3", draft_tokens=3)


def of_recipe(known: recipe.Recipe) -> Plan:
    """The recipe with what it is for, and with what a plan settles besides."""
    match = known.match or recipe.Conditions()
    said: dict[str, Any] = {"target": known.example or (match.model or ("org/model",))[0]}
    if match.drafter:
        said["drafter"] = match.drafter[0]
    rest = {"method": "eagle3", "draft_tokens": 3, "context": 32768, "host": "127.0.0.1", "port": 8000}
    rest |= {"format": "kimi_k25", "strict": "schema", "no_repair": "none", "threads": None, "gate": None}
    return overlay([recipe.layer(known), Layer("command line", said), Layer("default", rest)])


RECIPES = {known.name: of_recipe(known) for known in recipe.every()}


def words(command: Command) -> dict[str, str | None]:
    """Flag -> its value, None for a switch."""
    found: dict[str, str | None] = {}
    for argument in command.arguments:
        assert argument[0] not in found
        found[argument[0]] = argument[1] if len(argument) > 1 else None
    return found


def speculative(command: Command) -> dict[str, Any]:
    found = words(command).get("--speculative-config")
    return json.loads(found) if found else {}


# --- What the shell makes of it ---------------------------------------------------------------------------------------

_STUBS = r"""
vllm() { printf '%s\0' vllm "$@"; printf '%s\0' "$(printenv A)"; }
python() { printf '%s\0' python "$@"; printf '%s\0' "$(printenv A)"; }
trtllm-serve() { printf '%s\0' trtllm-serve "$@"; printf '%s\0' "$(printenv A)"; }
"""


def shell(script: str, folder: Path) -> list[str]:
    done = subprocess.run(
        ["bash", "-eu", "-c", _STUBS + script], capture_output=True, cwd=folder, env={"PATH": os.environ["PATH"]}
    )
    assert (done.returncode, done.stderr) == (0, b""), script
    return done.stdout.decode().removesuffix("\0").split("\0")


NASTY = st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("'\"`$\\\n\r !#&|;<>(){}*?~=%\x85\u2028"),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(form=st.sampled_from(sorted(COMMANDS)), target=NASTY, name=NASTY, value=NASTY, left=NASTY)
def test_what_the_shell_runs_is_the_command_word_for_word(
    tmp_path_factory: pytest.TempPathFactory, form: str, target: str, name: str, value: str, left: str
) -> None:
    asked = DRAFTING | plan(target=target, served_model_name=name, env={"A": value}, gpus=left)
    command = COMMANDS[form](asked)
    *argv, a = shell(command.script(), tmp_path_factory.mktemp("shell"))
    assert argv == command.argv
    assert not any(word.startswith("-") and word in (name, target) for word in argv[3:])
    assert a == value.rstrip("\n")  # what $(…) takes away in the stub


@pytest.mark.parametrize("form", sorted(COMMANDS))
def test_the_key_is_read_by_the_shell_and_written_nowhere(tmp_path: Path, form: str) -> None:
    key = tmp_path / "it's a key"
    key.write_text("s3cret\n")
    command = COMMANDS[form](plan(api_key_file=str(key)))
    assert "s3cret" not in command.script()
    script = command.script().replace("$(printenv A)", "")
    ran = shell(script.replace("VLLM_API_KEY=", "A="), tmp_path)
    if form == "vllm":
        assert ran == [*command.argv, "s3cret"]  # not among the words, which everybody can read
    elif form == "sglang":
        assert ran[-2] == "--api-key=s3cret"  # which may begin with a hyphen
        assert any("everybody on the machine can read" in note for note in command.notes)
    else:
        assert any(note.startswith("not carried over: api_key_file") for note in command.notes)


def test_the_file_of_options_is_what_the_command_names(tmp_path: Path) -> None:
    command = trtllm.command(RECIPES["kimi-k2.5-sm120-dcp4"])
    shell(command.script(), tmp_path)
    assert words(command)["--config"] == "trtllm.yaml"
    assert msgspec.yaml.decode((tmp_path / "trtllm.yaml").read_bytes()) == {
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 3,
            "speculative_model": "lightseekorg/kimi-k2.5-eagle3-mla",
        },
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": True},
        "disable_overlap_scheduler": False,
    }
    assert "--config" not in words(trtllm.command(plan()))


def test_lines_are_short_enough_to_read() -> None:
    for form in COMMANDS:
        for asked in RECIPES.values():
            lines = emitted(asked, form).splitlines()
            assert all(len(line) <= 100 for line in lines if line.startswith("#"))


# --- Nothing is dropped -----------------------------------------------------------------------------------------------

#: What an engine does without being told.
SILENT = {
    "vllm": [("draft_tokens", 0), ("gate", "off")],
    "sglang": [
        ("draft_tokens", 0),
        ("draft_sampling", "greedy"),
        ("draft_top_k", 1),
        ("trust_remote_code", False),
        ("async_scheduling", True),
        ("prefix_caching", True),
        ("chunked_prefill", True),
        ("language_model_only", False),
        ("mm_encoder_tp_mode", "weights"),
    ],
    "trtllm": [
        ("draft_tokens", 0),
        ("dtype", "auto"),
        ("trust_remote_code", False),
        ("chunked_prefill", False),
    ],
}
#: Replaced by what is asked for.
ANSWERED = ("engine",)

EVERY = [
    (form, option.name, value) for form in sorted(COMMANDS) for option in OPTIONS for value in SAMPLES[option.name]
]


@pytest.mark.parametrize(("form", "name", "value"), EVERY)
def test_every_setting_is_in_the_command_or_named_as_left_out(form: str, name: str, value: Any) -> None:
    others = {other: setting for other, setting in DRAFTING.items() if other != name}
    if name == "target":
        others["target"] = Setting("another", "test")
    without = COMMANDS[form](others)
    with_ = COMMANDS[form](others | plan(**({"target": "Qwen/Qwen3-8B"} if name != "target" else {}), **{name: value}))
    silent = name in ANSWERED or (name, value) in SILENT[form]
    if name == "draft_tokens" and value == 0:
        assert any(note.startswith("not carried over: drafter") for note in with_.notes)
    elif silent:
        assert with_ == without
    else:
        assert with_.script() != without.script()
        left = any(note.startswith(f"not carried over: {name} ") for note in with_.notes)
        said = (with_.argv, with_.variables, with_.files) != (without.argv, without.variables, without.files)
        assert left or said


@pytest.mark.parametrize("form", FORMS)
def test_what_has_no_value_needs_no_word(form: str) -> None:
    nothing = {option.name: Setting(None, "default") for option in OPTIONS if option.nullable}
    assert emitted(nothing | plan(), form) == emitted(plan(), form)


def test_a_setting_that_nobody_declared_is_named_too() -> None:
    notes = vllm.command(plan() | {"new_setting": Setting({"a": 1}, "test")}).notes
    assert 'not carried over: new_setting {"a": 1}: vLLM has no word for it' in notes


def test_what_dovetail_does_itself_is_said_so() -> None:
    notes = sglang.command(plan(strict="schema", no_repair="none")).notes
    front = "run `dovetail serve --engine URL` in front of SGLang"
    assert notes == (f"not carried over: strict schema, no_repair none: Dovetail's own; {front}",)


@pytest.mark.parametrize("form", sorted(COMMANDS))
def test_formats_are_read_or_named_as_not(form: str) -> None:
    for name in NAMES:
        command = COMMANDS[form](plan(format=name))
        parsers = getattr(FAMILIES.get(name), f"{form}_parsers", None)
        if parsers is None:
            assert any(note.startswith(f"not carried over: format {name}: ") for note in command.notes)
        else:
            values = words(command).values()
            assert parsers.calls in values and (parsers.reasoning is None or parsers.reasoning in values)


# --- vLLM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if engine_parsers(name, "vllm_parsers")])
def test_a_reasoning_parser_comes_with_what_it_means_behind_dovetail(name: str) -> None:
    """`dovetail serve --engine URL` refuses it; what would let it pass spoils vLLM's own endpoint."""
    command = vllm.command(plan(format=name))
    told = any(note.startswith("--reasoning-parser is for vLLM's own chat endpoint") for note in command.notes)
    assert told == ("--reasoning-parser" in words(command))
    assert not any("enable_in_reasoning" in word for word in command.argv)


def test_guidance_comes_with_what_it_means_without_dovetail() -> None:
    for backend in ("guidance", "xgrammar"):
        command = vllm.command(plan(format="hermes", grammar_backend=backend))
        assert words(command)["--structured-outputs-config.backend"] == backend
        assert (backend == "guidance") == any("vLLM's own chat endpoint refuses with it" in it for it in command.notes)


def test_the_source_recipe_comes_out_by_todays_names() -> None:
    command = vllm.command(RECIPES["kimi-k2.5-sm120-dcp4"])
    assert command.start == ("vllm", "serve", "moonshotai/Kimi-K2.5")
    assert speculative(command) == {
        "model": "lightseekorg/kimi-k2.5-eagle3-mla",
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
        "attention_backend": "TRITON_MLA",
        "kv_cache_dtype": "fp8",
        "num_speculative_tokens_per_batch_size": [[1, 127, 3], [128, 128, 0]],
    }
    said = words(command)
    expected = {
        "--tensor-parallel-size": "8",
        "--decode-context-parallel-size": "4",
        "--attention-backend": "TRITON_MLA",
        "--kv-cache-dtype": "fp8",
        "--load-format": "fastsafetensors",
        "--gpu-memory-utilization": "0.9",
        "--max-num-batched-tokens": "32768",
        "--max-num-seqs": "128",
        "--mm-processor-cache-gb": "0",
        "--mm-encoder-tp-mode": "weights",
        "--tool-call-parser": "kimi_k2",
        "--reasoning-parser": "kimi_k2",
        "--host": "127.0.0.1",
    }
    assert {flag: said[flag] for flag in expected} == expected
    switches = {"--trust-remote-code", "--enable-chunked-prefill", "--enable-prefix-caching", "--async-scheduling"}
    assert {flag for flag in switches | {"--enable-auto-tool-choice"} if said.get(flag, "absent") is None} == {
        *switches,
        "--enable-auto-tool-choice",
    }


def test_variables_come_first_and_those_that_are_gone_are_named() -> None:
    command = vllm.command(RECIPES["kimi-k2.5-sm120-dcp4"])
    assert command.script().partition("vllm serve")[0].count("=1 \\\n") == 3
    assert command.variables["NCCL_P2P_LEVEL"] == "SYS"
    gone = [note for note in command.notes if re.match(r"not carried over: VLLM_", note)]
    assert [note.split("=")[0].split(": ")[1] for note in gone] == [
        "VLLM_ENABLE_PCIE_ALLREDUCE",
        "VLLM_TEST_FORCE_FP8_MARLIN",
    ]
    assert vllm.command(plan(env={"A": None})).variables == {}


@pytest.mark.parametrize("form", ["sglang", "trtllm"])
def test_the_gate_is_a_comment_where_there_is_none(form: str) -> None:
    limits = {name: SAMPLES[name][0] for name in GATE}
    command = COMMANDS[form](DRAFTING | plan(**limits))
    assert command.argv == COMMANDS[form](DRAFTING).argv
    for name, value in limits.items():
        assert any(note.startswith(f"not carried over: {name} {value}: ") for note in command.notes)


def gated(command: Command) -> dict[str, Any] | None:
    """What the gate inside vLLM is told; None where nothing gates."""
    found = words(command)
    assert ("--scheduler-cls" in found) == ("--additional-config" in found)
    if "--scheduler-cls" not in found:
        return None
    assert found["--scheduler-cls"] == "dovetail.plugins.vllm.GatedScheduler"
    assert any("pip install dovetail[vllm]" in note for note in command.notes)
    told: dict[str, Any] = json.loads(found["--additional-config"] or "")
    assert told.keys() == {"dovetail"}
    member: dict[str, Any] = told["dovetail"]
    assert msgspec.convert(member, Settings)
    return member


def test_the_gate_is_dovetails_scheduler_inside_vllm() -> None:
    limits = {"speculate_below_context": 7000, "speculate_up_to_batch": 16}
    command = vllm.command(DRAFTING | plan(**limits, max_batch=64))
    assert gated(command) == {"gate": "off"} | limits
    assert gated(vllm.command(DRAFTING | plan(gate="measured"))) == {"gate": "measured"}
    for other in ({}, {"gate": "off"}, {"max_draft_tokens": 3}):
        ungated = vllm.command(DRAFTING | plan(**other))
        assert gated(ungated) is None
        assert speculative(ungated) == speculative(vllm.command(DRAFTING))
        assert not any(note.startswith("not carried over: ") for note in ungated.notes)
    assert gated(vllm.command(plan(gate="measured"))) is None  # nothing drafts


def test_what_is_drafted_at_most_is_vllms_own_number() -> None:
    most = vllm.command(DRAFTING | plan(gate="measured", max_draft_tokens=8))
    assert speculative(most)["num_speculative_tokens"] == 8
    always = vllm.command(DRAFTING | plan(gate="off", max_draft_tokens=8))
    assert speculative(always)["num_speculative_tokens"] == 3
    assert any(note.startswith("not carried over: max_draft_tokens 8: only a gate") for note in always.notes)


def test_graphs_are_captured_for_every_length_the_gate_chooses_from() -> None:
    def lengths(**settings: Any) -> list[list[int]] | None:
        found: list[list[int]] | None = speculative(vllm.command(DRAFTING | plan(**settings))).get(
            "num_speculative_tokens_per_batch_size"
        )
        return found

    assert lengths(speculate_below_context=7000, max_batch=64) == [[1, 63, 3], [64, 64, 0]]
    assert lengths(gate="measured", max_batch=64) == [[1, 61, 3], [62, 62, 2], [63, 63, 1], [64, 64, 0]]
    assert lengths(gate="measured", max_batch=4) == [[1, 1, 3], [2, 2, 2], [3, 3, 1], [4, 4, 0]]
    assert lengths(gate="measured", max_batch=3) is None  # no room for all
    assert lengths(gate="off", max_batch=64) is None
    assert lengths(gate="measured", max_batch=64, data_parallel_size=2) is None  # vLLM drops it there
    assert lengths(gate="measured", max_batch=64, method="suffix", drafter=None) is None  # the older model runner's


def test_probabilistic_drafts_beside_local_argmax_are_what_vllm_refuses() -> None:
    both = DRAFTING | plan(draft_sampling="probabilistic", local_argmax=True)
    assert speculative(vllm.command(both)).keys() >= {"use_local_argmax_reduction"}
    assert "draft_sample_method" not in speculative(vllm.command(both))
    assert any(note.startswith("not carried over: draft_sampling probabilistic") for note in vllm.command(both).notes)
    alone = DRAFTING | plan(draft_sampling="probabilistic", local_argmax=False)
    assert speculative(vllm.command(alone))["draft_sample_method"] == "probabilistic"


@pytest.mark.parametrize(
    ("method", "version", "config"),
    [
        ("mtp", "0.33", {"method": "mtp", "num_speculative_tokens": 3}),
        ("suffix", "0.33", {"method": "suffix", "num_speculative_tokens": 3}),
        ("peagle", "0.33", {"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True}),
        (
            "ngram",
            "0.33",
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 8, "prompt_lookup_min": 8},
        ),
        ("medusa", "0.32", {"method": "medusa", "num_speculative_tokens": 3}),
        ("medusa", "0.33", {}),
        ("mlp_speculator", "0.33", {}),
        ("domino", "0.33", {}),
    ],
)
def test_methods_by_vllms_names(method: str, version: str, config: dict[str, Any]) -> None:
    command = vllm.command(plan(method=method, draft_tokens=3), version)
    assert speculative(command) == config
    assert bool(config) != any(f"does not know the method {method}" in note for note in command.notes)


def test_ngram_lookup_says_its_shortest_match_and_no_other_method_has_one() -> None:
    said = speculative(vllm.command(plan(method="ngram", draft_tokens=3, prompt_lookup_min=12)))
    assert (said["prompt_lookup_min"], said["prompt_lookup_max"]) == (12, 12)
    said = speculative(vllm.command(plan(method="ngram", draft_tokens=3, prompt_lookup_min=4)))
    assert (said["prompt_lookup_min"], said["prompt_lookup_max"]) == (4, 8)
    notes = vllm.command(DRAFTING | plan(prompt_lookup_min=8)).notes
    assert "not carried over: prompt_lookup_min 8: only n-gram lookup has one" in notes


def test_a_drafter_with_nothing_to_draft_is_named_as_left_out() -> None:
    command = vllm.command(DRAFTING | plan(draft_tokens=0, draft_sampling="greedy"))
    assert speculative(command) == {}
    why = "no tokens are to be drafted"
    assert f"not carried over: drafter RedHatAI/Qwen3-8B-speculator.eagle3: {why}" in command.notes
    assert f"not carried over: draft_sampling greedy: {why}" in command.notes
    assert not any("draft_tokens" in note for note in command.notes)


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.32.0", "--no-enable-prefix-caching"),
        ("0.32.1+cpu", "--no-enable-prefix-caching"),
        ("v0.33.0", "--disable-prefix-caching"),
        ("0.34.0rc1", "--disable-prefix-caching"),
        ("1.0", "--disable-prefix-caching"),
        (None, "--disable-prefix-caching"),
    ],
)
def test_the_versions_own_words(version: str | None, flag: str) -> None:
    said = words(vllm.command(plan(prefix_caching=False, async_scheduling=False), version))
    assert flag in said
    assert "--no-async-scheduling" in said


@pytest.mark.parametrize(
    ("version", "newer"),
    [("0.32.1+cpu", False), ("v0.33.0", False), (None, False), ("0.34.0rc1", True), ("0.330", True), ("1.0", True)],
)
def test_a_version_that_nobody_has_tried_is_said(version: str | None, newer: bool) -> None:
    notes = vllm.command(plan(), version).notes
    assert (f"vLLM {version} is newer than any that was tried, so this is written for 0.33" in notes) == newer


@pytest.mark.parametrize(
    ("version", "message"), [("0.19.1", "vLLM 0.19.1 is older than any"), ("new", "'new' is no version of vLLM")]
)
def test_a_version_that_cannot_be_written_for(version: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        vllm.command(plan(), version)


def test_a_form_that_is_not_there() -> None:
    with pytest.raises(PlanError, match=r"'docker'; it can be for vllm, sglang, trtllm, k8s"):
        emitted(plan(), "docker")


# --- SGLang, TensorRT-LLM ---------------------------------------------------------------------------------------------


def test_sglang_counts_the_targets_token_too() -> None:
    said = words(sglang.command(RECIPES["kimi-k2.6-sm120-dcp8"]))
    assert said["--speculative-algorithm"] == "EAGLE3"
    assert said["--speculative-num-steps"] == "3"
    assert said["--speculative-eagle-topk"] == "1"
    assert said["--speculative-num-draft-tokens"] == "4"
    assert said["--speculative-draft-model-path"] == "lightseekorg/kimi-k2.6-eagle3"
    assert said["--tool-call-parser"] == "kimi_k2"
    assert said["--dcp-size"] == "8"
    assert said["--attention-backend"] == "triton"
    assert said["--kv-cache-dtype"] == "fp8_e4m3"


def test_a_tree_has_as_many_branches_as_are_asked_for() -> None:
    said = words(sglang.command(DRAFTING | plan(draft_top_k=4)))
    assert (said["--speculative-eagle-topk"], said["--speculative-num-draft-tokens"]) == ("4", "13")


def test_sglang_prefill_in_one_piece() -> None:
    said = words(sglang.command(plan(chunked_prefill=False, max_batched_tokens=4096)))
    assert (said["--chunked-prefill-size"], said["--max-prefill-tokens"]) == ("-1", "4096")
    assert words(sglang.command(plan(chunked_prefill=True, max_batched_tokens=4096))) == {
        "--model-path": "Qwen/Qwen3-8B",
        "--chunked-prefill-size": "4096",
    }


@pytest.mark.parametrize("form", ["sglang", "trtllm"])
def test_anothers_variables_stay_behind(form: str) -> None:
    command = COMMANDS[form](plan(env={"VLLM_LOG_STATS_INTERVAL": 1, "NCCL_P2P_LEVEL": "SYS"}))
    assert command.variables == {"NCCL_P2P_LEVEL": "SYS"}
    assert command.notes == ("not carried over: VLLM_LOG_STATS_INTERVAL=1: another engine's variable",)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def objects(asked: Mapping[str, Setting[Any]]) -> dict[str, dict[str, Any]]:
    """Kind -> object."""
    text = emitted(asked, "k8s")
    comments, _, rest = text.partition("apiVersion")
    assert all(line.startswith("#") for line in comments.splitlines())
    return {found["kind"]: found for found in map(msgspec.yaml.decode, ("apiVersion" + rest).split("---\n"))}


def pods(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    if "Deployment" in found:
        return [found["Deployment"]["spec"]["template"]]
    group = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


@pytest.mark.parametrize(
    ("degrees", "nodes", "gpus"),
    [
        ({}, 1, 1),
        ({"tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 1, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 2}, 1, 8),
        ({"tensor_parallel_size": 16}, 2, 8),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 3}, 3, 8),
        ({"tensor_parallel_size": 4, "data_parallel_size": 3}, 2, 6),
        ({"tensor_parallel_size": 3, "data_parallel_size": 3}, 3, 3),
        ({"data_parallel_size": 11}, 11, 1),
    ],
)
def test_gpus_are_spread_evenly_over_no_more_nodes_than_needed(degrees: dict[str, int], nodes: int, gpus: int) -> None:
    found = objects(plan(**degrees))
    assert ("Deployment" if nodes == 1 else "LeaderWorkerSet") in found
    for pod in pods(found):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    if nodes > 1:
        group = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        assert group["size"] == nodes
        leader, worker = (pod["spec"]["containers"][0] for pod in pods(found))
        shared = ["--nnodes", str(nodes), "--master-addr", "$(LWS_LEADER_ADDRESS)"]
        assert leader["command"][-6:] == [*shared, "--node-rank", "$(LWS_WORKER_INDEX)"]
        assert worker["command"] == [*leader["command"], "--headless"]
        assert "readinessProbe" in leader and "readinessProbe" not in worker


@pytest.mark.parametrize("asked", [plan(), plan(tensor_parallel_size=16)], ids=["one node", "two nodes"])
def test_the_service_finds_the_pod_that_answers(asked: Plan) -> None:
    found = objects(asked | plan(port=9000))
    leader = pods(found)[0]
    assert found["Service"]["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    for worker in pods(found)[1:]:
        assert not found["Service"]["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    container = leader["spec"]["containers"][0]
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert found["Service"]["spec"]["ports"][0] == {"name": "http", "port": 9000, "targetPort": "http"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["command"][container["command"].index("--host") + 1] == "0.0.0.0"


def test_a_pod_asks_for_a_key_from_a_secret() -> None:
    text = emitted(plan(api_key_file="/keys/my key", host="127.0.0.1"), "k8s")
    assert "# kubectl create secret generic qwen3-8b --from-file=api-key='/keys/my key'\n" in text
    assert "# not carried over: host 127.0.0.1: " in text
    assert "not carried over: api_key_file" not in text
    variables = pods(objects(plan()))[0]["spec"]["containers"][0]["env"]
    reference = {"secretKeyRef": {"name": "qwen3-8b", "key": "api-key"}}
    assert {"name": "VLLM_API_KEY", "valueFrom": reference} in variables
    assert "optional" not in reference["secretKeyRef"]


def test_folders_are_where_the_command_says_and_the_hub_has_a_volume() -> None:
    mixed = plan(target="/models/a", drafter="org/b", method="eagle3", draft_tokens=3, tensor_parallel_size=16)
    found = objects(mixed)
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(found):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert volumes[mounts["/models/a"]]["hostPath"]["path"] == "/models/a"
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        claim = volumes[mounts["/root/.cache/huggingface"]]["persistentVolumeClaim"]["claimName"]
        assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert "PersistentVolumeClaim" not in objects(plan(target="/models/a"))


def test_the_image_is_of_the_version() -> None:
    assert "image: vllm/vllm-openai:v0.32.0" in emitted(plan(), "k8s", "0.32.1")
    assert "image: vllm/vllm-openai:v0.33.0" in emitted(plan(), "k8s")


@given(name=NASTY, env=NASTY)
def test_names_are_ones_that_kubernetes_takes_and_words_arrive_as_they_are(name: str, env: str) -> None:
    asked = plan(served_model_name=name, env={"A": env})
    found = objects(asked)
    for kind in found.values():
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", kind["metadata"]["name"])
    container = pods(found)[0]["spec"]["containers"][0]
    assert [expanded(word) for word in container["command"]] == vllm.command(asked | plan(host="0.0.0.0")).argv
    assert [expanded(each["value"]) for each in container["env"] if each["name"] == "A"] == [env]


def expanded(word: str) -> str:
    """As the kubelet does: $$ is a dollar, and $(NAME) a variable (k8s.io/kubernetes, forked/golang/expansion)."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else "EXPANDED", word)


def test_what_another_reader_of_yaml_takes_for_a_number_is_text() -> None:
    numbers = {"A": "1e3", "B": "0o17", "C": "~"}
    text = emitted(plan(revision="7e12345", gpu_memory_utilization=1e-05, env=numbers), "k8s")
    assert '- "7e12345"\n' in text and '- "1e-05"\n' in text
    for value in numbers.values():
        assert f'value: "{value}"\n' in text


def test_over_nodes_only_our_own_words_are_expanded() -> None:
    pod = pods(objects(plan(tensor_parallel_size=16, served_model_name="$(LWS_LEADER_ADDRESS)")))[0]
    command = pod["spec"]["containers"][0]["command"]
    assert "$(LWS_LEADER_ADDRESS)" in command and "$$(LWS_LEADER_ADDRESS)" in command


@pytest.mark.parametrize("form", FORMS)
def test_comments_hold_nothing_that_cannot_be_printed(form: str) -> None:
    text = emitted(
        plan(api_key_file="/keys/\x1b]0;me\x07", no_repair="\x1b[2J", host="h\x9b", env={"VLLM_USE_V1": "\x00"}), form
    )
    lines = [line for line in text.splitlines() if line.startswith("#")]
    assert lines and all(line.isprintable() for line in lines)
    if form == "k8s":
        assert list(yaml.safe_load_all(text))


def test_nodes_are_as_few_as_hold_all_gpus() -> None:
    huge = plan(tensor_parallel_size=4093, pipeline_parallel_size=4091, data_parallel_size=4079)
    sizes = objects(huge)["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"]
    assert sizes == 4093 * 4091 * 4079  # primes: one GPU a node
    assert objects(plan(tensor_parallel_size=12))["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_never_another_flag(form: str) -> None:
    asked = plan(served_model_name="--trust-remote-code", revision="--api-key", load_format="-x", tokenizer="-y")
    script = "".join(line for line in emitted(asked, form).splitlines() if not line.startswith("#"))
    assert "--trust-remote-code" not in script.replace("=--trust-remote-code", "")
    assert "--revision=--api-key" in script and "--tokenizer" in script.replace("-path", "") and "=-y" in script


# --- The engines' own parsers -----------------------------------------------------------------------------------------


def judged(variable: str, python: str, engine: str, commands: Mapping[str, Mapping[str, Command]]) -> None:
    """Let the engine that `python` imports judge those `commands` that are for its version (version -> name -> one)."""
    if not python:
        pytest.skip(f"{variable} names no Python that imports {engine} (make check-emitted makes one and runs this)")
    cases = {
        version: {name: {"argv": one.argv, "variables": list(one.variables)} for name, one in named.items()}
        for version, named in commands.items()
    }
    script = Path(__file__).with_name("accepts.py")
    done = subprocess.run([python, str(script), engine], input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    wrong = {name: verdict for name, verdict in json.loads(done.stdout).items() if verdict is not None}
    assert wrong.pop("no such flag", None), "a parser that takes everything"
    assert wrong == {}


#: What a hub of our own has, of what recipes name; they know enough of all others.
ON_THE_HUB = {
    "deepseek-ai/DeepSeek-V3.2": DEEPSEEK_V32,
    "moonshotai/Kimi-K2.5": KIMI_K25,
    "lightseekorg/kimi-k2.5-eagle3-mla": KIMI_EAGLE3_MLA,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "RedHatAI/Qwen3-8B-FP8-dynamic": QWEN3_8B,
    "RedHatAI/Qwen3-8B-speculator.eagle3": QWEN3_8B_EAGLE3,
}


def resolved() -> dict[str, Plan]:
    """What `dovetail plan` makes of every recipe, and of the demo pair on vLLM."""

    def fetch(name: str, *, revision: str | None = None) -> str:
        if name not in ON_THE_HUB:
            raise CheckpointError(f"{name} cannot be fetched")
        return write(Path(folder, name), ON_THE_HUB[name])

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "fetch", fetch)
        made = {name: resolve(None, {}, recipe=name) for name in RECIPES if name != "demo"}
        made["demo"] = resolve(None, {}, engine="vllm")
    return {f"resolved {name}": one.carried for name, one in made.items()}


def plans() -> dict[str, Plan]:
    """Every recipe, alone and resolved, every sample of every setting beside a drafter, and all settings at once."""
    found = RECIPES | resolved()
    for option in OPTIONS:
        for value in SAMPLES[option.name]:
            found[f"{option.name} {value}"] = DRAFTING | plan(**{option.name: value})
    for name in NAMES:
        found[f"format {name}"] = plan(format=name)
    for i in (0, 1):
        found[f"everything {i}"] = plan(**{name: values[i] for name, values in SAMPLES.items()})
    return found


def pythons(variable: str) -> list[str]:
    return [path for path in os.environ.get(variable, "").split(os.pathsep) if path] or [""]


def with_a_bad_one(commands: dict[str, Command]) -> dict[str, Command]:
    some = next(iter(commands.values()))
    return commands | {"no such flag": msgspec.structs.replace(some, arguments=(*some.arguments, ("--no-such", "1")))}


@pytest.mark.parametrize("python", pythons("DOVETAIL_VLLM_PYTHON"))
def test_vllms_own_parser_takes_every_command(python: str) -> None:
    commands = {
        version: with_a_bad_one({name: vllm.command(asked, version) for name, asked in plans().items()})
        for version in vllm.VERSIONS
    }
    judged("DOVETAIL_VLLM_PYTHON", python, "vllm", commands)


@pytest.mark.parametrize("python", pythons("DOVETAIL_SGLANG_PYTHON"))
def test_sglangs_own_parser_takes_every_command(python: str) -> None:
    commands = {"0.5": with_a_bad_one({name: sglang.command(asked) for name, asked in plans().items()})}
    judged("DOVETAIL_SGLANG_PYTHON", python, "sglang", commands)
