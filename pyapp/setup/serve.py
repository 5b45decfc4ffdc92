"""Serving ``dist/`` together with the gateway: for people (``build.py serve``), for tests and for the bench."""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from pyapp.gateway.app import create_app
from pyapp.gateway.serve import bind, serve_on
from pyapp.gateway.settings import DEFAULT_MODEL_FILE, Settings

from .cache import cache_folder
from .failure import SetupError
from .progress import seconds_running
from .site import build_site, print_sizes


def gateway_settings() -> Settings:
    """The gateway's settings from the environment, with the default model where this build keeps it."""
    return Settings.from_env({"TANDEM_MODEL_PATH": str(cache_folder() / "models" / DEFAULT_MODEL_FILE), **os.environ})


def make_app(dist: Path, settings: Settings | None = None) -> Any:
    """The gateway's ASGI app over a built site."""
    return create_app(site=dist, settings=settings or gateway_settings())


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an ASGI app on a free port from a thread while the block runs; gives its base URL. Raises SetupError."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2))

        def answer() -> None:
            with suppress(SystemExit):  # how uvicorn leaves when the app does not start
                server.run(sockets=[bound])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise SetupError("The server ended before it was listening; its own words are above.")
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def run(options: argparse.Namespace, root: Path) -> int:
    """``build.py serve``. Raises BadArgument when the address is taken."""
    with bind(options.host, options.port) as listener:  # first, so that a taken port is told before any work
        site = build_site(root)
        print_sizes(site)

        def announce(address: str) -> None:
            print(f"Tandem is on {address} (up in {seconds_running():.1f} s; Ctrl-C stops)", flush=True)

        serve_on(listener, site.dist, options.host, gateway_settings(), announce)
    return 0
