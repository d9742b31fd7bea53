"""Published models by name. Their templates, where there are any, are read by the format that the list names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import UnknownFormat
from dovetail.formats.derived.differencing import NAME as DERIVED
from dovetail.formats.derived.generic import NAME as GENERIC
from dovetail.formats.published import formats_of, published
from dovetail.formats.registry import FAMILIES
from tests.formats import chat_templates


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("zai-org/GLM-5.1-FP8", "glm47"),
        ("GLM-5.3", "glm47"),
        ("glm-4.6v", "glm45"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder"),
        ("Qwen/Qwen3.5-35B-A3B", "qwen3_coder"),
        ("Qwen3.8-Flash-Next", "qwen3_coder"),
        ("moonshotai/Kimi-K2.7-Code", "kimi_k25"),
        ("Kimi-K2-Thinking", "kimi_k2_thinking"),
        ("stepfun-ai/Step-3.7", "step3p5"),
        ("inclusionAI/Ling-3.0-flash", "glm47"),
        ("Spark-2.5", "glm47"),
        ("Nanbeige4-3B", "qwen3_coder"),
        ("internlm/Intern-S2-Preview", "qwen3_coder"),
        ("poolside/Laguna-XS.2", "glm45"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek_v32"),
        ("deepseek-ai/DeepSeek-V4.1-Flash/", "deepseek_v41"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek_v3"),
        ("XHToken/Spark-X2.5-4B", "glm47"),
        ("arcee-ai/Trinity-Large-Thinking", "qwen3_coder"),
        ("arcee-ai/Trinity-Mini", "qwen3"),
        ("miromind-ai/MiroThinker-v1.5-30B", "qwen3"),
        ("ai-sage/GigaChat3.5-Ultra", "gigachat35"),
        ("swiss-ai/Apertus-70B-Instruct-2509", "apertus"),
        ("meituan-longcat/LongCat-Flash-Chat", "longcat_flash"),
        ("meituan-longcat/LongCat-2.0", "longcat"),
        ("IFM/K2-Horizon-7B", "k2_horizon"),
        ("allenai/Olmo-3.1-32B-Instruct", "olmo3"),
        ("Inkling-Small", "inkling"),
        ("IQuest-Q1", "iquest_q1"),
        ("dots3-note-preview", "dots"),
        ("Beam", "beam"),
        ("tencent/Hy4", "derived"),
        ("stepfun-ai/step3-fp8", "derived"),
        ("pfnet/plamo-3-nict-8b", "derived"),
        ("ai-sage/GigaChat3.1-10B-A1.8B", "derived"),
        ("K2.7-Code", "kimi_k25"),
        ("GLM5", "glm47"),
        ("Qwen 3.8", "qwen3_coder"),
        ("InternS2", "qwen3_coder"),
        ("Step-3", "derived"),
        ("OLMo 3", "olmo3"),
        ("GigaChat 3.5", "gigachat35"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "generic"),
    ],
)
def test_a_published_model_has_one_format(model: str, name: str) -> None:
    assert list(formats_of(model)) == [name]


def test_a_part_of_a_name_has_the_formats_of_all_models() -> None:
    assert formats_of("GLM") == {"glm45": ("GLM-4.5*", "GLM-4.6*"), "glm47": ("GLM-4.7*", "GLM-5*")}


def test_an_unknown_model_is_told_what_is_near() -> None:
    with pytest.raises(UnknownFormat, match="near are DeepSeek-V4, "):
        formats_of("deepsek-v4")
    for name in ("zzz", "", "/"):
        with pytest.raises(UnknownFormat, match=r"is known\. Of any"):
            formats_of(name)


def test_the_list_has_every_format_and_each_name_once() -> None:
    assert list(published()) == [*FAMILIES, DERIVED, GENERIC]
    names = [name.lower() for names in published().values() for name in names]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_the_templates_of_published_models_are_read_so(shared_data: Path) -> None:
    compared = 0
    for path in chat_templates.paths(shared_data):
        for start in (0, path.stem.find("-") + 1):
            try:
                found = formats_of(path.stem[start:])
            except UnknownFormat:
                continue
            family = chat_templates.of(path).family_name
            if len(found) == 1 and (family in (*FAMILIES, *found) or DERIVED in found):
                (name,) = found
                assert name == family or FAMILIES[name].reader_type is FAMILIES[family].reader_type, path.stem
                compared += 1
    assert compared > 30
