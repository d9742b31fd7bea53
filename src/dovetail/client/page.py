"""HTML pages of reports, each one file without scripts or links to elsewhere. Templates escape every text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

_BASE = Path(__file__).with_suffix(".html")  # the frame that templates extend, with the style of all pages


def page(template: Path, **values: Any) -> str:
    """The page that `template` makes of `values`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _BASE.parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(values)
