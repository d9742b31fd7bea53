"""What sets the methods of drafting apart for a plan."""

from __future__ import annotations

#: Methods of drafters that the embedded engine runs.
OF_EMBEDDED = ("eagle3", "peagle", "mtp", "draft_model")
#: Methods that look earlier text up and have no weights.
LOOKUPS = ("ngram", "suffix")
#: Of n-gram lookup, the shortest match with which tool calls were reported clean; matches of 2 corrupted about half of
#: them (https://github.com/vllm-project/vllm/issues/40875).
CLEAN_LOOKUP = 8
