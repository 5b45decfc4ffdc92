"""Who is asking, as an address to count by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ..errors import BadArgument

Network = IPv4Network | IPv6Network

UNKNOWN = "unknown"


def parse_network(text: str) -> Network:
    """``10.0.0.0/8``, ``fd00::/8``, or a single address. Raises ``BadArgument``."""
    try:
        return ip_network(text)
    except ValueError:
        raise BadArgument(f"{text[:100]!r} is no network; give an address, or one such as 10.0.0.0/8.") from None


def client_address(peer: str | None, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """The client's address: the connection's other end, or whom trusted proxies name in ``X-Forwarded-For``.

    ``forwarded`` holds the header's values in order. Each proxy adds at the right the address that it was called from,
    so what stands left of the first address that is no trusted proxy is a claim of the client itself and is not read.
    IPv6 clients are counted by their /64, since each has one to itself.
    """
    address = _parse(peer or "")
    hops = [hop for value in forwarded for hop in value.split(",")]
    while address is not None and hops and any(address in network for network in trusted):
        before = _parse(hops.pop())
        if before is None:
            break
        address = before
    if address is None:
        return UNKNOWN
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address)


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """An address, with or without a port, brackets or a zone."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
