"""``python -m pyapp.gateway``: the gateway by itself, with or without the site."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import TandemError
from .logs import configure_logs
from .serve import serve
from .settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pyapp.gateway",
        description="Serve the cloud stream and the built site. TANDEM_UPSTREAM_URL, TANDEM_UPSTREAM_KEY and "
        "TANDEM_UPSTREAM_MODEL name an OpenAI-compatible server; without them an embedded llama.cpp answers from "
        "TANDEM_MODEL_PATH. TANDEM_CONFIG names a file of shops and limits. docs/deployment.md tells the rest.",
    )
    parser.add_argument("--site", type=Path, help="the built site's folder (default: no pages, only the API)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for a free one (default: %(default)s)")
    options = parser.parse_args()
    try:
        if options.site is not None and not options.site.is_dir():
            parser.error(f"--site {options.site} is not a folder")
        settings = Settings.from_env()
        configure_logs(settings.log_format)
        serve(options.site, options.host, options.port, settings, lambda url: print(url, flush=True))
    except TandemError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
