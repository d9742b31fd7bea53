"""Settings: declared once, and one check for the command line, config files and recipes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.checkpoints.methods import LOOKUPS, Method
from dovetail.errors import PlanError
from dovetail.plan.option import Option
from dovetail.plan.options import BY_NAME, OPTIONS, validated
from tests.plan.samples import SAMPLES

HERE = Path("/config")


def check(values: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    return validated(values, where, folder)[0]


def ids(option: Option) -> str:
    return option.name


def test_names_and_flags_are_unique() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names))
    flags = [flag for option in OPTIONS if option.command_line for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_every_setting_has_samples() -> None:
    assert SAMPLES.keys() == BY_NAME.keys()


def test_engine_names_are_of_known_engines() -> None:
    engines = {engine for option in OPTIONS for engine in option.engine_names}
    assert engines == {"embedded", "vllm", "sglang", "trtllm", "llama.cpp"}


def test_methods_are_those_of_drafters_and_of_lookups() -> None:
    assert set(BY_NAME["method"].choices or ()) == {*get_args(Method), *LOOKUPS, "none"}


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
def test_samples_are_valid_and_unchanged(option: Option) -> None:
    for value in SAMPLES[option.name]:
        assert check({option.name: value}, "here", HERE) == {option.name: value}


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
def test_none_unsets_nullable_settings_only(option: Option) -> None:
    if option.nullable:
        assert check({option.name: "none"}, "here", HERE) == check({option.name: None}, "here", HERE)
        assert check({option.name: None}, "here", HERE) == {option.name: None}
    else:
        with pytest.raises(PlanError, match=rf"^here: {option.name} is None: expected"):
            check({option.name: None}, "here", HERE)


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
def test_a_value_of_another_type_is_refused_by_name(option: Option) -> None:
    with pytest.raises(PlanError, match=rf"^here: {option.name} is \[1\]: expected [^`\n]*, got array$"):
        check({option.name: [1]}, "here", HERE)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False, argument_default=argparse.SUPPRESS, exit_on_error=False)
    for option in OPTIONS:
        if option.command_line:
            option.add_to(made)
    return made


PARSER = parser()


def as_words(option: Option, flag: str, value: Any) -> list[str]:
    """The value as words of a command line."""
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [f"{flag}={'none' if value is None else value}"]


def test_a_flag_that_repeats_is_a_list_with_commas() -> None:
    words = ["--allow-origin", "http://a", "--port", "9", "--allow-origin=https://b,https://c"]
    assert vars(PARSER.parse_args(words)) == {"allow_origin": "http://a,https://b,https://c", "port": 9}


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.command_line], ids=ids)
def test_the_command_line_and_a_file_agree(option: Option) -> None:
    # A switch that is left to the engine is one that is not named.
    unset = [None] if option.nullable and True not in SAMPLES[option.name] else []
    for flag, value in itertools.product(option.flags, (*SAMPLES[option.name], *unset)):
        arguments = vars(PARSER.parse_args(as_words(option, flag, value)))
        assert check(arguments, "command line", HERE) == check({option.name: value}, "config file", HERE)
        in_file = msgspec.yaml.decode(msgspec.yaml.encode({option.name: value}))
        assert check(in_file, "config file", HERE) == check(arguments, "command line", HERE)


def test_absent_flags_set_nothing() -> None:
    assert vars(PARSER.parse_args([])) == {}


def test_help_shows_every_setting_that_has_a_flag() -> None:
    text = "".join(PARSER.format_help().split())
    for option in OPTIONS:
        assert option.command_line == ("".join(option.help.split()) in text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "eight"], "invalid int value: 'eight'"),
        (["--speculate-below-context", "x"], "invalid int value: 'x'"),
        (["--speculate-up-to-batch", "few"], "invalid int value: 'few'"),
        (["--max-draft-tokens", "2.5"], "invalid int value: '2.5'"),
        (["--gate", "on"], "invalid choice: 'on'"),
        (["--gate", "none"], "invalid choice: 'none'"),
        (["--grammar-backend", "x"], "invalid choice: 'x'.*unset"),
        (["--gpu-memory-utilization", "most"], "invalid float value: 'most'"),
        (["--strict", "very"], "invalid choice: 'very'"),
        (["--kv-cache-dtype", "int3"], "invalid choice: 'int3'"),
    ],
)
def test_a_bad_value_is_refused_by_the_parser(words: list[str], message: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=message):
        PARSER.parse_args(words)


BAD: list[tuple[Mapping[str, Any], str]] = [
    ({"prot": 1}, r"^here: there is no setting 'prot'; did you mean port\?$"),
    ({"max_model_length": 1}, r"did you mean max_model_len\?$"),
    ({"tensor_parallel": 8}, r"did you mean tensor_parallel_size\?$"),
    ({"kv_cache_type": "fp8"}, r"did you mean kv_cache_dtype\?$"),
    ({"zzz": 1}, r"the settings are target, drafter, "),
    ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization is 1\.5: expected float <= 1\.0"),
    ({"gpu_memory_utilization": 0}, r"expected float > 0\.0"),
    ({"kv_cache_dtype": "int3"}, r"kv_cache_dtype is 'int3': invalid enum value 'int3'"),
    ({"tensor_parallel_size": 0}, r"tensor_parallel_size is 0: expected int >= 1"),
    ({"speculate_below_context": -1}, r"speculate_below_context is -1: expected int >= 1"),
    ({"speculate_below_context": 0}, r"speculate_below_context is 0: expected int >= 1"),
    ({"speculate_up_to_batch": 0}, r"speculate_up_to_batch is 0: expected int >= 1"),
    ({"speculate_up_to_batch": 4097}, r"speculate_up_to_batch is 4097: expected int <= 4096"),
    ({"max_draft_tokens": 0}, r"max_draft_tokens is 0: expected int >= 1"),
    ({"max_draft_tokens": -3}, r"max_draft_tokens is -3: expected int >= 1"),
    ({"max_draft_tokens": 65}, r"max_draft_tokens is 65: expected int <= 64"),
    ({"gate": "on"}, r"gate is 'on': invalid enum value 'on'"),
    ({"gate": False}, r"gate is False: expected"),
    ({"drafter": ""}, r"drafter is '': expected str of length >= 1"),
    ({"env": {"A B": "1"}}, r"^here: env is \{'A B': '1'\}: 'A B' is not a name of an environment variable$"),
    ({"env": {"A=1;reboot": "1"}}, r"not a name of an environment variable"),
    ({"env": {"A": [1]}}, r"env is \{'A': \[1\]\}: expected"),
    ({"context": 1, "max_model_len": 2}, r"^here: context and max_model_len both set context: keep one of them$"),
    (
        {"speculate_below_context": 1, "env": {"VLLM_SPECULATIVE_DISABLE_ABOVE_SEQ_LEN": 2}},
        r"both set speculate_below_context",
    ),
    (
        {"speculative_config": {"tree": 1}},
        r"speculative_config: there is no setting for 'tree'; its members are model, ",
    ),
    ({"speculative_config": [1]}, r"there is no setting 'speculative_config'"),
    ({"rejection_sample_method": "synthetic"}, r"only 'probabilistic' can be read, as draft_sampling"),
    ({"rejection_sample_method": ["probabilistic"]}, r"only 'probabilistic' can be read, as draft_sampling"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_settings_are_refused_in_one_line(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        check(values, "here", HERE)
    assert "\n" not in refusal.value.message


@given(
    st.dictionaries(
        st.text(max_size=20) | st.sampled_from([*BY_NAME, "env", "speculative_config"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    )
)
def test_any_file_is_read_or_refused(values: dict[str, Any]) -> None:
    with contextlib.suppress(PlanError):
        assert check(values, "here", HERE).keys() <= BY_NAME.keys()


# What a command for vLLM was written like in April 2026 (vLLM issue #40608), and what it says today.
OLD = {
    "model": "moonshotai/Kimi-K2.5",
    "max_num_seqs": 128,
    "max_num_batched_tokens": 32768,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "speculative_config": {
        "model": "lightseekorg/kimi-k2.5-eagle3-mla",
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "draft_attention_backend": "TRITON_MLA",
        "draft_kv_cache_dtype": "fp8",
        "rejection_sample_method": "probabilistic",
        "use_local_argmax_reduction": False,
    },
    "env": {"VLLM_SPECULATIVE_DISABLE_ABOVE_SEQ_LEN": "7000", "NCCL_P2P_LEVEL": "SYS"},
}
TODAY = {
    "target": "moonshotai/Kimi-K2.5",
    "max_batch": 128,
    "max_batched_tokens": 32768,
    "prefix_caching": True,
    "chunked_prefill": True,
    "drafter": "lightseekorg/kimi-k2.5-eagle3-mla",
    "method": "eagle3",
    "draft_tokens": 3,
    "draft_attention_backend": "TRITON_MLA",
    "draft_kv_cache_dtype": "fp8",
    "draft_sampling": "probabilistic",
    "local_argmax": False,
    "speculate_below_context": 7000,
    "env": {"NCCL_P2P_LEVEL": "SYS"},
}


def test_older_names_are_translated_with_notes() -> None:
    values, notes = validated(OLD, "config file", HERE)
    assert values == TODAY
    assert "config file: VLLM_SPECULATIVE_DISABLE_ABOVE_SEQ_LEN is speculate_below_context here" in notes
    assert "config file: speculative_config rejection_sample_method is draft_sampling here" in notes
    assert "config file: max_num_seqs is max_batch here" in notes
    assert not any("NCCL" in note or "draft_attention_backend is" in note for note in notes)


def test_names_of_vllms_speculative_config_are_read() -> None:
    config = {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "bfloat16", "draft_sample_method": "greedy"}
    values, _ = validated({"speculative_config": config, "attention_backend": "TRITON_MLA"}, "here", HERE)
    assert values == {
        "draft_attention_backend": "FLASH_ATTN",
        "draft_kv_cache_dtype": "bfloat16",
        "draft_sampling": "greedy",
        "attention_backend": "TRITON_MLA",
    }


def test_our_own_names_need_no_note() -> None:
    assert validated(TODAY, "here", HERE) == (TODAY, [])


def test_paths_are_relative_to_their_file_and_hub_ids_are_kept(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)

    def path(name: str, value: str) -> Any:
        return check({name: value}, "here", tmp_path)[name]

    assert path("target", "Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert path("target", "org/model") == str(tmp_path / "org" / "model")  # a folder goes before the hub
    assert path("target", "./Qwen/Qwen3-8B") == str(tmp_path / "Qwen" / "Qwen3-8B")
    assert path("target", "model") == str(tmp_path / "model")
    assert path("drafter", "a/b/c") == str(tmp_path / "a" / "b" / "c")
    assert path("drafter", "/a/../b") == "/b"
    assert path("tokenizer", "~/t") == str(Path.home() / "t")
    assert path("api_key_file", "keys/mine") == str(tmp_path / "keys" / "mine")  # no hub has those
    assert path("load_format", "a/b") == "a/b"
