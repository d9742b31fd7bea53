"""The answer to a request for a path, or with a method, that is not served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.routing import BaseRoute, Route


def explanation(method: str, path: str, routes: Sequence[BaseRoute]) -> str:
    """Why `method` and `path` are not served, and what is."""
    methods = _methods(path, routes)
    if methods:
        return f"{path:.200} is served for {' and '.join(methods)}, not for {method:.20}"
    corrected = next((other for other in _likely(path) if _methods(other, routes)), None)
    if corrected is not None and path.startswith("/v1/v1/"):
        return (
            f"{path:.200} is not served; {corrected} is: the client adds /v1 itself, so its base URL has to end without"
        )
    if corrected is not None and corrected == f"/v1{path}":
        return f"{path:.200} is not served; {corrected} is: the client's base URL has to end with /v1"
    if corrected is not None:
        return f"{path:.200} is not served; {corrected} is"
    return f"{path:.200} is not served; served are {', '.join(described(routes))}"


def described(routes: Sequence[BaseRoute]) -> list[str]:
    """The served paths with their methods, as in `POST /v1/chat/completions`, without the files of a page."""
    paths: dict[str, list[str]] = {}
    for route in _plain(routes):
        if route.include_in_schema:
            name = route.path.replace(":path", "")
            paths.setdefault(name, []).extend(_sorted(route))
    return [f"{'|'.join(methods)} {path}" for path, methods in paths.items()]


def _plain(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    return (route for route in routes if isinstance(route, Route))


def _sorted(route: Route) -> list[str]:
    return sorted((route.methods or set()) - {"HEAD"})


def _methods(path: str, routes: Sequence[BaseRoute]) -> list[str]:
    return sorted({method for route in _plain(routes) if route.path_regex.match(path) for method in _sorted(route)})


def _likely(path: str) -> Iterator[str]:
    """The paths that the client may have meant."""
    yield f"/v1{path}"
    if path.startswith("/v1/v1/"):
        yield path.removeprefix("/v1")
    yield "/" + "/".join(filter(None, path.split("/")))  # without slashes too many
    _, prefix, rest = path.partition("/v1/")
    yield prefix + rest
