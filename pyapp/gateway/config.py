"""The operator's file of shops and limits (``TANDEM_CONFIG``, TOML). Without one the gateway is open to all.

    trusted_proxies = ["10.0.0.0/8"]    # whose X-Forwarded-For is believed
    token_seconds = 300

    [client]                            # for each address; all three are optional
    requests_per_minute = 30
    concurrent = 3
    tokens_per_day = 100_000

    [sites.rosa]                        # as many as there are shops; the name is for logs and metrics
    key = "pk_rosa_5f2c9e"              # public: it stands in the shop's pages
    ancestors = ["https://shop.rosa.example", "https://*.rosa.example"]
    requests_per_minute = 600
    concurrent = 100
    tokens_per_day = 5_000_000

    [telemetry]                         # pages may report how texts went; without this table there is no such address
    price_per_million_prompt_tokens = 0.15      # of the cloud, for the cost that the devices save
    price_per_million_completion_tokens = 0.6
    currency = "EUR"

The secrets that sign tokens are in no file: ``TANDEM_TOKEN_SECRETS`` holds one or several, the newest first.
"""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import BadArgument
from .client_address import Network, parse_network
from .limits import Caps
from .origins import matches, parse_pattern
from .prices import DEFAULT_CURRENCY, Prices

_SHORTEST_SECRET = 32  # bytes, as many as the hash has
_TOKEN_SECONDS = 300
_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_KEY = re.compile(r"[A-Za-z0-9_-]{8,128}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_PRICES = ("price_per_million_prompt_tokens", "price_per_million_completion_tokens")
_HIGHEST_PRICE = 1_000_000
_NO_CAPS = Caps()
_CAPS = tuple(item.name for item in fields(Caps))


@dataclass(frozen=True, slots=True)
class Site:
    """One merchant: ``key`` as in the shop's pages, ``ancestors`` that may show the widget (see ``origins``)."""

    name: str
    key: str
    ancestors: tuple[str, ...]
    caps: Caps = _NO_CAPS

    def allows(self, origin: str) -> bool:
        return any(matches(pattern, origin) for pattern in self.ancestors)


@dataclass(frozen=True, slots=True)
class Config:
    sites: tuple[Site, ...] = ()
    client: Caps = _NO_CAPS
    trusted_proxies: tuple[Network, ...] = ()
    token_seconds: int = _TOKEN_SECONDS
    telemetry: Prices | None = None
    """What the cloud's tokens cost, where telemetry is taken."""

    def site(self, key: str) -> Site | None:
        """The site with that key; the time it takes does not tell how much of a key was right."""
        found = [site for site in self.sites if hmac.compare_digest(site.key.encode(), key.encode(errors="replace"))]
        return found[0] if found else None


def load_config(path: Path | None) -> Config:
    """The file's content, checked; the open one for None. Raises ``BadArgument`` with the place in the file."""
    if path is None:
        return Config()
    try:
        payload = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArgument(f"TANDEM_CONFIG names {path}, which cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise BadArgument(f"TANDEM_CONFIG names {path}, which is not valid TOML ({error}).") from None
    try:
        return _config(payload)
    except BadArgument as error:
        raise BadArgument(f"{path}: {error.message}") from None


def parse_secrets(text: str | None) -> tuple[bytes, ...]:
    """Secrets separated by commas or blanks. Raises ``BadArgument``."""
    secrets = tuple(secret.encode() for secret in (text or "").replace(",", " ").split())
    if any(len(secret) < _SHORTEST_SECRET for secret in secrets):
        raise BadArgument(
            f"TANDEM_TOKEN_SECRETS holds a secret of less than {_SHORTEST_SECRET} characters; make one with "
            "`openssl rand -hex 32`."
        )
    return secrets


def _config(payload: dict[str, Any]) -> Config:
    _known(payload, {"trusted_proxies", "token_seconds", "client", "sites", "telemetry"}, "the file")
    client = _table(payload, "client", "the file")
    _known(client, set(_CAPS), "[client]")
    sites = tuple(_site(name, table) for name, table in _table(payload, "sites", "the file").items())
    if len({site.key for site in sites}) < len(sites):
        raise BadArgument("two sites have the same key; give each its own.")
    return Config(
        sites,
        _caps(client, "[client]"),
        tuple(_proxies(text) for text in _texts(payload, "trusted_proxies", "the file")),
        _whole(payload, "token_seconds", "the file") or _TOKEN_SECONDS,
        _prices(_table(payload, "telemetry", "the file")) if "telemetry" in payload else None,
    )


def _proxies(text: str) -> Network:
    network = parse_network(text)
    if network.prefixlen == 0:
        raise BadArgument(
            f"trusted_proxies holds {text}, which is everybody, so that each client could choose its address; give the "
            "network of your own proxies."
        )
    return network


def _site(name: str, table: object) -> Site:
    where = f"[sites.{name}]"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise BadArgument(f"{where} must be a table whose name has lower-case letters, digits, - and _ only.")
    _known(table, {"key", "ancestors", *_CAPS}, where)
    key = table.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise BadArgument(f"key in {where} must have 8 to 128 letters, digits, - or _.")
    ancestors = tuple(parse_pattern(text) for text in _texts(table, "ancestors", where))
    if not ancestors:
        raise BadArgument(f"ancestors in {where} must list at least one origin, such as https://shop.example.")
    return Site(name, key, ancestors, _caps(table, where))


def _prices(table: Mapping[str, Any]) -> Prices:
    where = "[telemetry]"
    _known(table, {*_PRICES, "currency"}, where)
    currency = table.get("currency", DEFAULT_CURRENCY)
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise BadArgument(f"currency in {where} must be a code of three capital letters, such as EUR.")
    prompt, completion = (_price(table, name, where) for name in _PRICES)
    return Prices(prompt, completion, currency)


def _price(table: Mapping[str, Any], name: str, where: str) -> float:
    value = table.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _HIGHEST_PRICE:
        raise BadArgument(f"{name} in {where} must be a number from 0 to {_HIGHEST_PRICE}.")
    return float(value)


def _caps(table: Mapping[str, Any], where: str) -> Caps:
    return Caps(**{name: _whole(table, name, where) for name in _CAPS})


def _known(table: Mapping[str, Any], names: set[str], where: str) -> None:
    """A misspelt limit would be no limit."""
    if strange := sorted(set(table) - names):
        raise BadArgument(f"{strange[0]!r} in {where} is not known; known are {', '.join(sorted(names))}.")


def _table(table: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise BadArgument(f"{name} in {where} must be a table.")
    return value


def _texts(table: Mapping[str, Any], name: str, where: str) -> list[str]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadArgument(f"{name} in {where} must be a list of texts.")
    return value


def _whole(table: Mapping[str, Any], name: str, where: str) -> int | None:
    value = table.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise BadArgument(f"{name} in {where} must be a whole number above 0.")
    return value
