"""The health check inside an image: whether the server on port 8000 can answer."""

from __future__ import annotations

import http.client
import sys

PORT = 8000


def healthy(port: int, timeout: float = 4.0) -> bool:
    """Whether `/health` of the server on this machine answers with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not healthy(PORT))
