"""The gateway's ASGI application: the cloud stream, a health address, and the static site."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from .access import Access
from .answers import for_the_operator
from .config import load_config, parse_secrets
from .endpoint import CloudStreamEndpoint
from .health import HealthEndpoint
from .metrics import Metrics
from .settings import Settings
from .static import StaticSite
from .telemetry import TelemetryEndpoint
from .telemetry_metrics import TelemetryMetrics
from .token_endpoint import TokenEndpoint
from .upstream import Upstream

CLOUD_STREAM_PATH = "/api/ai/cloud-stream"
HEALTH_PATH = "/api/ai/health"
METRICS_PATH = "/api/ai/metrics"
TELEMETRY_PATH = "/api/ai/telemetry"
SUMMARY_PATH = "/api/ai/telemetry/summary"
TOKEN_PATH = "/api/ai/token"

log = logging.getLogger("tandem.gateway")


def create_app(site: Path | None, settings: Settings | None = None) -> Starlette:
    """The application that serves ``site`` (None: no pages) and the cloud stream.

    Without ``settings`` the environment is read. Raises ``BadArgument`` for settings or a configuration file that make
    no sense. The application needs its lifespan run: it starts the embedded server there and ends it.
    ``app.state.upstream`` is the upstream.
    """
    settings = settings or Settings.from_env()
    config = load_config(settings.config)
    access = Access(config, parse_secrets(settings.token_secrets))
    upstream = Upstream(settings)
    metrics = Metrics(lambda: upstream.ready)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        upstream.start()
        try:
            yield
        finally:
            await upstream.close()

    async def health(request: Request) -> JSONResponse:
        body = {"status": "ok", "upstream": upstream.kind, "ready": upstream.ready}
        return JSONResponse(body, headers={"cache-control": "no-store"})

    async def no_such_api(request: Request) -> JSONResponse:
        error = {"code": "bad_argument", "message": "There is nothing at this address."}
        return JSONResponse({"error": error}, 404, {"cache-control": "no-store"})

    routes: list[BaseRoute] = [
        Route(CLOUD_STREAM_PATH, CloudStreamEndpoint(settings, upstream, access, metrics)),
        Route(HEALTH_PATH, HealthEndpoint(upstream).get),
        Route("/healthz", health),
        Route("/api/{rest:path}", no_such_api, methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    ]
    if settings.metrics_key:

        def page(request: Request) -> Response:
            return metrics.page(request.headers.get("accept", ""))

        routes.insert(0, Route(METRICS_PATH, for_the_operator(settings.metrics_key, page)))
    if config.telemetry is not None:
        telemetry = TelemetryMetrics(metrics.registry, config.telemetry)
        routes.insert(0, Route(TELEMETRY_PATH, TelemetryEndpoint(access, telemetry, settings.body_seconds)))
        if settings.metrics_key:

            def summary(request: Request) -> Response:
                return JSONResponse(telemetry.summary(), headers={"cache-control": "no-store"})

            routes.insert(0, Route(SUMMARY_PATH, for_the_operator(settings.metrics_key, summary)))
    if not access.open:
        routes.insert(0, Route(TOKEN_PATH, TokenEndpoint(access, settings.body_seconds)))
    if site is not None:
        routes.append(Mount("/", StaticSite(site, access.frame_ancestors)))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.upstream = upstream
    return app
