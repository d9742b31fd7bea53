"""`format`: a format by its name, or by the files of a checkpoint. To add one, see docs/adding-a-family.md."""

from __future__ import annotations

from pathlib import Path

from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.checkpoints.gguf.header import is_gguf
from dovetail.errors import UnknownFormat
from dovetail.formats.base import Format
from dovetail.formats.families.apertus import Apertus
from dovetail.formats.families.beam import Beam
from dovetail.formats.families.command_a import Command4, CommandA
from dovetail.formats.families.deepseek_dsml import DeepSeekV4, DeepSeekV32, DeepSeekV41
from dovetail.formats.families.deepseek_v3 import DeepSeekV3, DeepSeekV31
from dovetail.formats.families.dots import Dots
from dovetail.formats.families.ernie45 import Ernie45
from dovetail.formats.families.functionary import Functionary
from dovetail.formats.families.gemma4 import FunctionGemma, Gemma4
from dovetail.formats.families.gigachat3 import GigaChat3
from dovetail.formats.families.gigachat35 import GigaChat35
from dovetail.formats.families.glm import Glm45, Glm47
from dovetail.formats.families.granite import Granite
from dovetail.formats.families.harmony import Harmony
from dovetail.formats.families.hermes import Hermes, Qwen3
from dovetail.formats.families.hunyuan import Hunyuan
from dovetail.formats.families.inkling import Inkling
from dovetail.formats.families.internlm import InternLM
from dovetail.formats.families.iquest import IQuestQ1
from dovetail.formats.families.jamba import Jamba
from dovetail.formats.families.k2_horizon import K2Horizon
from dovetail.formats.families.kimi_k2 import KimiK2, KimiK2Thinking, KimiK25
from dovetail.formats.families.kimi_k3 import KimiK3
from dovetail.formats.families.lfm2 import Lfm2
from dovetail.formats.families.llama3_json import Llama3Json
from dovetail.formats.families.longcat import LongCat, LongCatFlash
from dovetail.formats.families.mimo import MiMo
from dovetail.formats.families.minicpm5 import MiniCPM5
from dovetail.formats.families.minimax_m2 import MiniMaxM2
from dovetail.formats.families.minimax_m3 import MiniMaxM3
from dovetail.formats.families.mistral import Mistral
from dovetail.formats.families.muse import Muse
from dovetail.formats.families.nemotron_v3 import NemotronV3
from dovetail.formats.families.olmo3 import Olmo3
from dovetail.formats.families.phi4_mini import Phi4Mini
from dovetail.formats.families.pythonic import Pythonic
from dovetail.formats.families.qwen3_coder import Qwen3Coder
from dovetail.formats.families.seed_oss import SeedOss
from dovetail.formats.families.solar_open import SolarOpen
from dovetail.formats.families.step3p5 import Step3p5
from dovetail.formats.families.xlam import Xlam

#: The formats that need no checkpoint, by name.
FAMILIES: dict[str, type[Format]] = {
    kind.name: kind
    for kind in (
        KimiK2,
        KimiK2Thinking,
        KimiK25,
        KimiK3,
        DeepSeekV3,
        DeepSeekV31,
        DeepSeekV32,
        DeepSeekV4,
        DeepSeekV41,
        Hermes,
        Qwen3,
        Qwen3Coder,
        MiMo,
        NemotronV3,
        SeedOss,
        SolarOpen,
        Step3p5,
        Glm45,
        Glm47,
        MiniMaxM2,
        MiniMaxM3,
        MiniCPM5,
        Gemma4,
        FunctionGemma,
        Llama3Json,
        Mistral,
        Harmony,
        Pythonic,
        Lfm2,
        Granite,
        CommandA,
        Command4,
        Hunyuan,
        Ernie45,
        InternLM,
        Jamba,
        Xlam,
        Phi4Mini,
        Functionary,
        Muse,
        GigaChat3,
        GigaChat35,
        Apertus,
        IQuestQ1,
        LongCat,
        LongCatFlash,
        K2Horizon,
        Dots,
        Inkling,
        Olmo3,
        Beam,
    )
}
#: The format of any other model, which comes from the model's chat template.
JINJA = "jinja"
NAMES = (*FAMILIES, JINJA)


def format(name_or_path: str | Path, *, generic_tools: bool = True) -> Format:
    """The format with this name, or the one that a checkpoint (a folder or a GGUF file) was trained on: see `because`.

    `generic_tools`: whether a chat template that shows no tools gets them as text, in a layout that most models know.
    The file of a chat template is not enough, because only the tokenizer tells which of its marks are control tokens.
    Raises `UnknownFormat` if there is no such format or folder, and `CheckpointError` if no format fits the checkpoint.
    """
    known = FAMILIES.get(str(name_or_path))
    if known is not None:
        return known()
    path = Path(name_or_path)
    if is_gguf(path):
        path = Path(gguf_folder(path))
    if path.is_dir():
        # Imports the template engine when there is a template to compare with.
        from dovetail.formats.derived.detection import detect

        return detect(path, FAMILIES, generic_tools=generic_tools)
    if path.is_file():
        raise UnknownFormat(
            f"{path} is a file: give the folder of its checkpoint, whose tokenizer has the control tokens"
        )
    if str(name_or_path) == JINJA:
        raise UnknownFormat(
            f"the format {JINJA} is made of a chat template: give the folder of the checkpoint that has it"
        )
    raise UnknownFormat(f"no format or checkpoint folder {str(name_or_path)!r}; the formats are {', '.join(NAMES)}")


def served_format(name: str | Path, folder: Path) -> Format:
    """The format called `name` for the checkpoint in `folder`.

    A family without prompts of its own gets them from the checkpoint's chat template. Raises `UnknownFormat` if there
    is no such format, and `PlanError` or `CheckpointError` if the checkpoint has no template whose calls the family
    reads.
    """
    named = format(name)
    if named.is_native:
        return named
    from dovetail.formats.derived.detection import with_template

    return with_template(named.name, folder, FAMILIES)
