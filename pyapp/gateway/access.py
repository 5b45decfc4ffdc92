"""Who may use the cloud stream, and how much of it: shops by their signed tokens, clients by their address."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Scope

from ..errors import BadArgument, CloudUnavailable
from .client_address import client_address
from .config import Config, Site
from .limits import Account, Accounts, Caps, Ticket
from .origins import parse_origin
from .tokens import Claims, Signer, TokenRefused

_REPORTS = Caps(requests_per_minute=60, concurrent=8)
"""Of telemetry from each address. An account of its own: reports must not use up what a client has for texts."""
_MOST_CLIENTS = 50_000
"""Addresses remembered at a time; an account takes less than 1 KiB."""


class Access:
    """One per gateway. Without sites in ``config`` no token is needed, and only the client's limits count."""

    def __init__(self, config: Config, secrets: tuple[bytes, ...], clock: Callable[[], float] = time.time) -> None:
        """Raises ``BadArgument`` where there are sites without secrets to sign their tokens with, or the reverse."""
        if config.sites and not secrets:
            raise BadArgument(
                "TANDEM_CONFIG lists sites but TANDEM_TOKEN_SECRETS is not set; make a secret with "
                "`openssl rand -hex 32` and give all replicas the same."
            )
        if secrets and not config.sites:
            raise BadArgument(
                "TANDEM_TOKEN_SECRETS is set but TANDEM_CONFIG lists no site, so the gateway would be open to "
                "everybody; list the sites, or take the secrets away."
            )
        self.open = not config.sites
        self._config = config
        self._signer = Signer(secrets) if secrets else None
        self._clock = clock
        self._clients = Accounts(config.client, "This client", _MOST_CLIENTS)
        self._reporters = Accounts(_REPORTS, "This client", _MOST_CLIENTS)
        self._sites = {site.key: Account(site.caps, "This shop") for site in config.sites}

    def site(self, headers: Headers) -> Site | None:
        """The shop whose token the request carries, None where none is needed. Raises ``CloudUnavailable`` (401)."""
        if self.open or self._signer is None:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("The request has no access token")
        try:
            claims = self._signer.verify(token.strip(), self._clock())
        except TokenRefused as refused:
            expired = refused.reason == "expired"
            raise _unauthorized(f"The access token {'has expired' if expired else 'is not valid'}") from None
        site = self._config.site(claims.site)
        # A domain or key taken out of the file is out at once, not when its tokens have run out.
        if site is None or not site.allows(claims.ancestor):
            raise _unauthorized("The access token is for a site that is no longer allowed")
        return site

    def admit(self, scope: Scope, headers: Headers, site: Site | None) -> Ticket:
        """Counts the request for its client and for ``site``. Raises ``Busy`` (429)."""
        accounts = [self._clients.of(self._address(scope, headers))]
        if site is not None:
            accounts.append(self._sites[site.key])
        return Ticket(accounts, self._clock)

    def admit_report(self, scope: Scope, headers: Headers) -> Ticket:
        """Counts a request with telemetry for its client. Raises ``Busy`` (429)."""
        return Ticket([self._reporters.of(self._address(scope, headers))], self._clock)

    def issue(self, key: str, ancestor: str) -> tuple[str, int]:
        """A token for the shop with ``key`` around whose widget the page of ``ancestor`` stands, and its seconds.

        Raises ``BadArgument`` (403) for a key that does not exist and for an origin that is not the shop's.
        """
        site, origin = self._config.site(key), parse_origin(ancestor)
        if site is None or self._signer is None:
            raise BadArgument("The site key is not known; check the one in the page's code.", status=403)
        if origin is None or not site.allows(origin):
            raise BadArgument(
                f"The origin {ancestor[:200]!r} is not among this site key's domains; the operator has to add it.",
                status=403,
            )
        seconds = self._config.token_seconds
        return self._signer.sign(Claims(site.key, origin, int(self._clock()) + seconds)), seconds

    def frame_ancestors(self, key: str | None) -> str:
        """Who may show the widget page that was asked for with ``key``, as the policy's source list."""
        if self.open:
            return "*"
        site = None if key is None else self._config.site(key)
        return "'self'" if site is None else " ".join(site.ancestors)

    def _address(self, scope: Scope, headers: Headers) -> str:
        peer = scope.get("client")
        forwarded = headers.getlist("x-forwarded-for")
        return client_address(peer[0] if peer else None, forwarded, self._config.trusted_proxies)


def _unauthorized(why: str) -> CloudUnavailable:
    return CloudUnavailable(f"{why}; ask for a new one.", status=401)
