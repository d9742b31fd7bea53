"""The JSON schema of recordings, by their types. `python -m tests.gateway.recording_schema` writes it to docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from dovetail.gateway.observe.recording import KIND, VERSION, Recording

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "recording.schema.json"


def recording_schema() -> dict[str, Any]:
    """The schema. Every field of a recording is written, and further ones may be added to it."""
    # msgspec writes no schema of a field that holds JSON as it came.
    fields = [(field.name, Any if field.name == "request" else field.type) for field in structs.fields(Recording)]
    like = msgspec.defstruct("Recording", fields, kw_only=True)
    (schema,), components = msgspec.json.schema_components([like], ref_template="#/$defs/{name}")
    for component in components.values():
        component.pop("description", None)  # which docs/inspector.md has, in words for readers
    components["Recording"]["properties"] |= {"kind": {"const": KIND}, "version": {"const": VERSION}}
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": components}
    return json.loads(json.dumps(whole))  # type: ignore[no-any-return]


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(recording_schema(), indent=1) + "\n")
