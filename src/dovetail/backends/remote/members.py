"""Which servers there are behind a name: in DNS, or as a service of Kubernetes. Both change while Dovetail runs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.backends.remote.server import Server
from dovetail.errors import EngineError, PlanError

#: The URLs of the servers that there are now. Raises `EngineError` if that is not known.
Find = Callable[[], Awaitable[Collection[str]]]

#: Seconds that an answer may take.
_LOOKUP_S = 5.0
_NAME = re.compile(r"dns://([\w.-]+):(\d{1,5})")
_SERVICE = re.compile(r"kubernetes://([a-z0-9-]+)(?:\.([a-z0-9-]+))?(?::([a-z0-9-]+))?")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Members(NamedTuple):
    """Servers that come and go: `find` tells their URLs, and `server` makes what talks to one."""

    find: Find
    server: Callable[[str], Server]


def finder(address: str) -> Find | None:
    """What finds the servers behind an `address`; None for the URL of one server.

    `dns://NAME:PORT`: all addresses that NAME has. `kubernetes://SERVICE[.NAMESPACE][:PORT]`: the ready endpoints of a
    service; PORT is a number or a port's name, and the service's first one if it is left out. Raises `PlanError`.
    """
    if (match := _NAME.fullmatch(address)) and 0 < int(match[2]) < 1 << 16:
        return Names(match[1], int(match[2])).find
    if match := _SERVICE.fullmatch(address):
        return EndpointSlices(match[1], match[2], match[3]).find
    if address.startswith(("dns:", "kubernetes:")):
        raise PlanError("engine must be dns://NAME:PORT, or kubernetes://SERVICE[.NAMESPACE][:PORT]")
    return None


def together(finders: Sequence[Find]) -> Find:
    """Finds what all of `finders` find."""

    async def find() -> Collection[str]:
        return dict.fromkeys([url for urls in await asyncio.gather(*(each() for each in finders)) for url in urls])

    return find


class Names(NamedTuple):
    """The addresses of a name, which a headless service of Kubernetes has too."""

    name: str
    port: int

    async def find(self) -> Collection[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await loop.getaddrinfo(self.name, self.port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise EngineError(f"{self.name} cannot be looked up in DNS: no answer in {_LOOKUP_S:g} s") from error
        except (OSError, UnicodeError) as error:  # a label that is empty or too long is no text for IDNA
            why = error.strerror if isinstance(error, OSError) else error
            raise EngineError(f"{self.name} cannot be looked up in DNS: {why}") from error
        return dict.fromkeys([_url(str(address[0]), self.port) for *_, address in found])


class EndpointSlices:
    """The ready endpoints of a service, by Kubernetes' own client: in a pod, or where kubectl works.

    https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
    """

    def __init__(self, service: str, namespace: str | None, port: str | None) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise PlanError("kubernetes:// needs Kubernetes' client: pip install 'dovetail[kubernetes]'") from error
        try:
            (config.load_incluster_config if "KUBERNETES_SERVICE_HOST" in os.environ else config.load_kube_config)()
        except Exception as error:  # the client raises several types for what it finds in files
            raise PlanError(f"no access to Kubernetes is configured here: {error}") from error
        inside = _NAMESPACE.read_text(encoding="utf-8").strip() if _NAMESPACE.exists() else "default"
        self._service, self._namespace, self._port = service, namespace or inside, port
        self._api: Any = client.DiscoveryV1Api()

    async def find(self) -> Collection[str]:
        name = f"{self._service}.{self._namespace}"
        try:
            slices = await asyncio.to_thread(
                self._api.list_namespaced_endpoint_slice,
                self._namespace,
                label_selector=f"kubernetes.io/service-name={self._service}",
                resource_version="0",  # what the API server has in its memory is new enough
                _request_timeout=_LOOKUP_S,
            )
        except Exception as error:  # of the client, of urllib3 below it, and of the network
            reason = getattr(error, "reason", None) or error
            raise EngineError(f"the endpoints of {name} cannot be listed: {reason}") from error
        return dict.fromkeys([url for each in slices.items for url in self._urls(each)])

    def _urls(self, part: Any) -> list[str]:
        ports = [port for port in part.ports or () if self._port in (None, port.name, str(port.port))]
        number = int(self._port) if self._port and self._port.isdecimal() else ports[0].port if ports else None
        ready = [each for each in part.endpoints or () if each.conditions is None or each.conditions.ready is not False]
        return [] if number is None else [_url(address, number) for each in ready for address in each.addresses]


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
