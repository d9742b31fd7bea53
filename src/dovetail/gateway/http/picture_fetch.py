"""Fetches the pictures that a request names by an https URL, before its turn is prepared.

A server that fetches what a client names can be made to call servers that the client cannot reach. So the operator
lists the hosts; the addresses of a host are resolved once, checked, and used for the connection; and each redirect is
checked as the first URL is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from dovetail.completion import Picture
from dovetail.errors import InvalidRequest
from dovetail.gateway.turn.picture_files import LIMITS, RemotePicture, checked
from dovetail.gateway.turn.turn_request import TurnRequest

#: Seconds for all pictures of a request.
_SECONDS = 10.0
_MOST_REDIRECTS = 3
_AT_A_TIME = 4
_REDIRECTS = (301, 302, 303, 307, 308)
#: Networks whose addresses stand for IPv4 addresses, which may be private: 6to4 and NAT64.
_TRANSLATED = tuple(map(ipaddress.ip_network, ("2002::/16", "64:ff9b::/96", "64:ff9b:1::/48")))


def is_public(address: str) -> bool:
    """Whether `address` is one of the internet: no loopback, link-local, private, shared or multicast address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if any(ip in network for network in _TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast


class _Refused(Exception):
    """Why a picture is not fetched, for the client."""


class _CheckedResolver(AbstractResolver):
    """Resolves a host, and refuses it if one of its addresses is not allowed."""

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not all(self._allowed(str(address[0])) for *_, address in found):
            raise _Refused("its host has an address that is not public")
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        pass


class PictureFetcher:
    """Fetches pictures from `hosts` ("*": from all).

    `together`: the most bytes of all pictures of a request. `allowed` tells whether an address may be called, `context`
    whose certificates count, `port` where hosts listen.
    """

    def __init__(
        self,
        hosts: Collection[str],
        together: int = 64 * 1024 * 1024,
        *,
        allowed: Callable[[str], bool] = is_public,
        context: ssl.SSLContext | None = None,
        port: int = 443,
        seconds: float = _SECONDS,
    ) -> None:
        self._hosts = frozenset(hosts)
        self._together = together
        self._allowed = allowed
        self._context = context
        self._port = port
        self._seconds = seconds

    async def fetched(self, request: TurnRequest) -> TurnRequest:
        """`request` with the files of its pictures. A URL that it names twice is fetched once.

        Raises `InvalidRequest` naming the part for a URL that may not be called, or has no picture in time.
        """
        remote = {picture.url: picture for picture in request.pictures if isinstance(picture, RemotePicture)}
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._allowed), use_dns_cache=False, force_close=True, limit=_AT_A_TIME
        )
        # A compressed body is not unpacked: a few kilobytes of it may be gigabytes.
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        ) as session:
            room = _Room(self._together)
            files = await asyncio.gather(*(self._picture(session, picture, room) for picture in remote.values()))
        by_url = dict(zip(remote, files, strict=True))
        pictures = (by_url[each.url] if isinstance(each, RemotePicture) else each for each in request.pictures)
        return msgspec.structs.replace(request, pictures=tuple(pictures))

    async def _picture(self, session: aiohttp.ClientSession, picture: RemotePicture, room: _Room) -> Picture:
        try:
            async with asyncio.timeout(self._seconds):
                data = await self._file(session, picture.url, room)
        except _Refused as refused:
            raise _invalid(picture, str(refused)) from None
        except TimeoutError:
            raise _invalid(picture, f"it did not come within {self._seconds:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _invalid(picture, "its host does not answer") from error
        return await asyncio.to_thread(checked, data, picture.name or picture.field)

    async def _file(self, session: aiohttp.ClientSession, url: str, room: _Room) -> bytes:
        for _ in range(1 + _MOST_REDIRECTS):
            self._check(url)
            async with session.get(url, allow_redirects=False, ssl=self._context or True) as response:
                if response.status in _REDIRECTS:
                    url = urljoin(url, response.headers.get("Location", ""))
                    continue
                if response.status != 200:
                    raise _Refused(f"its host answers with HTTP status {response.status}")
                return await _read(response, room)
        raise _Refused(f"it is redirected more than {_MOST_REDIRECTS} times")

    def _check(self, url: str) -> None:
        """Raise `_Refused` unless `url` is one of a host that the operator lists."""
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        if parts.scheme != "https" or "@" in parts.netloc or (parts.port or 443) != self._port:
            raise _Refused("it is redirected to a URL that is not plain https")
        if "*" not in self._hosts and host not in self._hosts:
            raise _Refused("this server fetches no pictures from its host: send it as a data: URL")
        if _is_address(host):
            raise _Refused("it has an address where the name of a host should be")


class _Room:
    """Room for the pictures of one request, of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _Refused(f"the pictures of the request have more than {self._size:,} bytes together")


async def _read(response: aiohttp.ClientResponse, room: _Room) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        room.take(len(piece))
        if len(data) > LIMITS.size:
            raise _Refused(f"it has more than {LIMITS.size:,} bytes")
    return bytes(data)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _invalid(picture: RemotePicture, why: str) -> InvalidRequest:
    name = picture.name or picture.field
    return InvalidRequest(f"{name} cannot be fetched: {why}", param=name)
