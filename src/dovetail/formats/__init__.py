"""One file per model family; `format` finds the right one by name or by looking at a checkpoint."""

from dovetail.formats.base import Format
from dovetail.formats.prompts.history import Repair
from dovetail.formats.registry import NAMES, format

__all__ = ["NAMES", "Format", "Repair", "format"]
