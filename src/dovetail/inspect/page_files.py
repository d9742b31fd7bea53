"""The files of the page: one HTML file, its style, its modules. They hold no data, so they need no key."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/inspect"

_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Nothing is loaded from elsewhere, nothing runs but the modules, no other page shows this one in a frame, and no text
#: becomes HTML.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """The routes of the page's files: the HTML file at `/inspect`, the others below it."""
    return [_route(file) for file in sorted(_FOLDER.iterdir()) if file.suffix in _MEDIA_TYPES]


def page_paths() -> frozenset[str]:
    """The paths of the page's files."""
    return frozenset(route.path for route in page_routes())


def _route(file: Path) -> Route:
    response = Response(file.read_bytes(), headers=_HEADERS, media_type=_MEDIA_TYPES[file.suffix])

    async def send(request: Request) -> Response:
        return response

    if file.name == "index.html":
        return Route(PATH, send)
    return Route(f"{PATH}/{file.name}", send, include_in_schema=False)
