"""Servers of vLLM, SGLang or llama.cpp, reached over HTTP, as one `Engine`."""

from dovetail.backends.remote.engine import RemoteEngine
from dovetail.backends.remote.server import Server
from dovetail.backends.remote.vocabulary import Vocabulary, read_vocabulary

__all__ = ["RemoteEngine", "Server", "Vocabulary", "read_vocabulary"]
