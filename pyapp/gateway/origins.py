"""Origins of the shops that may show the widget: ``https://shop.example``, or ``https://*.shop.example``.

The same text goes into the widget page's ``frame-ancestors`` and is compared with the origin that a token is asked for,
so it means the same in both: a star stands for one or more labels, never for the name below it alone.
"""

from __future__ import annotations

import re

from ..errors import BadArgument

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])"
_ORIGIN = re.compile(rf"(https?)://({_HOST})(?::([0-9]{{1,5}}))?")
_PATTERN = re.compile(rf"(https?)://(\*\.)?({_HOST})(?::([0-9]{{1,5}}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LONGEST = 300


def parse_origin(text: str) -> str | None:
    """``text`` as browsers write an origin (lower case, no default port), None where it is none."""
    match = _ORIGIN.fullmatch(text.lower()) if len(text) <= _LONGEST else None
    return None if match is None else f"{match[1]}://{match[2]}{_port(match[1], match[3])}"


def parse_pattern(text: str) -> str:
    """An allowed ancestor as the operator wrote it, in the same form. Raises ``BadArgument``."""
    match = _PATTERN.fullmatch(text.strip().rstrip("/").lower()) if len(text) <= _LONGEST else None
    if match is None or (match[2] and "." not in match[3]):
        raise BadArgument(
            f"{text[:100]!r} is no ancestor origin; give one such as https://shop.example or https://*.shop.example, "
            "international names in their xn-- form."
        )
    return f"{match[1]}://{match[2] or ''}{match[3]}{_port(match[1], match[4])}"


def matches(pattern: str, origin: str) -> bool:
    """Whether ``origin`` (of ``parse_origin``) is one of those that ``pattern`` (of ``parse_pattern``) allows."""
    scheme, _, host = pattern.partition("://")
    if not host.startswith("*."):
        return pattern == origin
    prefix = f"{scheme}://"
    return origin.startswith(prefix) and origin.endswith(host[1:]) and len(origin) > len(prefix) + len(host[1:])


def _port(scheme: str, port: str | None) -> str:
    if port is None:
        return ""
    port = port.lstrip("0") or "0"
    return "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
