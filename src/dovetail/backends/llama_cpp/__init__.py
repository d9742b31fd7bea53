"""llama.cpp's server as a child process of Dovetail."""

from dovetail.backends.llama_cpp.launching import launch
from dovetail.backends.llama_cpp.program import LlamaServer, version

__all__ = ["LlamaServer", "launch", "version"]
