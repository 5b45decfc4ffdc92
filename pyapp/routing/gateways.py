"""What one client asks of gateways: streams, and to take telemetry. The shop's token is shared where it is the same."""

from __future__ import annotations

from ..errors import CloudUnavailable
from .access_token import Shop, ShopTransport, TokenSource
from .cloud import CloudStream
from .cloud_side import CloudSide
from .transport import Transport

_HEADERS = {"content-type": "application/json"}


class Reporter:
    """Takes telemetry to ``url``, with a token where there is a source of ``tokens``."""

    def __init__(self, url: str, transport: Transport, tokens: TokenSource | None) -> None:
        self._url = url
        self._transport = transport if tokens is None else ShopTransport(transport, tokens)
        self._tokens = tokens

    async def post(self, text: str) -> None:
        """Sends JSON. Raises: CloudUnavailable where it is not taken."""
        reply = await self._transport.post(self._url, text.encode(), _HEADERS)
        await reply.close()
        if not 200 <= reply.status < 300:
            said = f"{self._url} answered with HTTP {reply.status}."
            raise CloudUnavailable(said, kind="http", status=reply.status)

    def close(self) -> None:
        """The client is closed: what is posted from now on goes with the token at hand, and no other is asked for."""
        if self._tokens is not None:
            self._tokens.close()


class Gateways:
    """``transport`` is for streams and tokens; requests of ``beacons`` go on when the page is left meanwhile.

    ``shop`` is None where no site key was given: the gateway is asked without a token then.
    """

    def __init__(self, transport: Transport, beacons: Transport) -> None:
        self._transport = transport
        self._beacons = beacons
        self._sources: dict[tuple[str, Shop], TokenSource] = {}

    def cloud_side(self, url: str, shop: Shop | None) -> CloudSide:
        """The gateway's stream at ``url``."""
        tokens = self._tokens(url, shop)
        transport = self._transport if tokens is None else ShopTransport(self._transport, tokens)
        return CloudSide(CloudStream(url, transport))

    def reporter(self, url: str, shop: Shop | None) -> Reporter:
        """The gateway's address for telemetry at ``url``."""
        return Reporter(url, self._beacons, self._tokens(url, shop))

    def _tokens(self, url: str, shop: Shop | None) -> TokenSource | None:
        if shop is None:
            return None
        source = TokenSource(url, shop, self._transport)
        return self._sources.setdefault((source.url, shop), source)
