"""Runs the gateway under uvicorn until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from ..errors import BadArgument
from .app import create_app
from .settings import Settings

_STOP_SECONDS = 3


def serve(
    site: Path | None,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; streams still open then are cut after 3 s.

    ``port`` 0 takes a free one. ``announce`` gets the address (``http://host:port``) once requests are answered. Raises
    ``BadArgument`` when the address cannot be taken.
    """
    with bind(host, port) as listener:
        serve_on(listener, site, host, settings, announce)


def serve_on(
    listener: socket.socket,
    site: Path | None,
    host: str,
    settings: Settings | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """``serve`` on a socket that ``bind`` took at ``host``; the caller closes it."""
    app = create_app(site, settings)
    address = _address(host, listener.getsockname()[1])

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if announce and not self.should_exit:
                announce(address)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",  # whatever libraries are there: the application takes HTTP only
        proxy_headers=False,  # whose X-Forwarded-For is believed is the configuration's matter
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_STOP_SECONDS,
        backlog=2048,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its orderly end
        Server(config).run([listener])


def bind(host: str, port: int) -> socket.socket:
    """Takes an address, without answering on it yet: connections are refused until then. Raises ``BadArgument``."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise BadArgument(f"The host {host} cannot be used ({error}); give another with --host.") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
    except (OSError, OverflowError) as error:
        listener.close()
        raise BadArgument(
            f"Port {port} on {host} cannot be taken ({error}); give another with --port, or end what uses it."
        ) from None
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
