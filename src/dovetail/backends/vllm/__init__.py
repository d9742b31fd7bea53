"""vLLM as a child process of Dovetail: its program, its command line, its log, and whether an engine drafts."""

from dovetail.backends.vllm.launching import launch
from dovetail.backends.vllm.probing import TOKENS as PROBE_TOKENS
from dovetail.backends.vllm.probing import Finding, Probed, probe
from dovetail.backends.vllm.program import VLLM, find, version

__all__ = ["PROBE_TOKENS", "VLLM", "Finding", "Probed", "find", "launch", "probe", "version"]
