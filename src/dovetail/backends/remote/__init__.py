"""Servers of vLLM, SGLang or llama.cpp, reached over HTTP, as one `Engine`."""

from dovetail.backends.remote.engine import PATIENCE_S, RemoteEngine
from dovetail.backends.remote.server import Deadlines, Server
from dovetail.backends.remote.vocabulary import Vocabulary, read_vocabulary

__all__ = ["PATIENCE_S", "Deadlines", "RemoteEngine", "Server", "Vocabulary", "read_vocabulary"]
