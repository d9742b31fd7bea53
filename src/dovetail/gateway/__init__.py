"""HTTP in front of an engine: OpenAI's chat completions, with a format at both ends."""

from dovetail.gateway.app import MoreRoutes, create_app
from dovetail.gateway.settings import Settings

__all__ = ["MoreRoutes", "Settings", "create_app"]
