"""vLLM as a child process of Dovetail, completing through `backends.remote`."""

from dovetail.backends.vllm.engine import PATIENCE_S, Downloaded, VLLMEngine
from dovetail.backends.vllm.launching import URL, Launch, Socket, launch, log_path
from dovetail.backends.vllm.log import Phase, Progress
from dovetail.backends.vllm.probing import TOKENS as PROBE_TOKENS
from dovetail.backends.vllm.probing import Finding, Probed, probe
from dovetail.backends.vllm.program import find, version

__all__ = [
    "PATIENCE_S",
    "PROBE_TOKENS",
    "URL",
    "Downloaded",
    "Finding",
    "Launch",
    "Phase",
    "Probed",
    "Progress",
    "Socket",
    "VLLMEngine",
    "find",
    "launch",
    "log_path",
    "probe",
    "version",
]
