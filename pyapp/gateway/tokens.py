"""Short-lived tokens for the cloud stream: who may ask, for which shop's page, until when. Signed, not secret.

``v1.<claims>.<signature>``: the claims as JSON, the signature HMAC-SHA256 over everything before it, both in base64url
without padding. Nothing is stored, so every replica with the same secrets takes every other's tokens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass

_VERSION = "v1"
_LONGEST = 2048  # characters


class TokenRefused(Exception):
    """``reason`` is "bad" or "expired"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Claims:
    """``site`` is the merchant's key, ``ancestor`` the origin of the page around the widget, ``expires`` Unix time."""

    site: str
    ancestor: str
    expires: int


class Signer:
    """Signs with the first of ``secrets`` and takes tokens of all of them, so that they can be changed one by one."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        assert secrets
        self._secrets = tuple(secrets)

    def __repr__(self) -> str:
        return f"Signer({len(self._secrets)} secrets)"

    def sign(self, claims: Claims) -> str:
        fields = {"site": claims.site, "ancestor": claims.ancestor, "expires": claims.expires}
        signed = f"{_VERSION}.{_encode(json.dumps(fields, separators=(',', ':')).encode())}"
        return f"{signed}.{_signature(self._secrets[0], signed)}"

    def verify(self, token: str, now: float) -> Claims:
        """The claims of a token that one of the secrets signed and that is still good at ``now`` (Unix time).

        Raises ``TokenRefused``.
        """
        signed, _, signature = token.rpartition(".")
        if len(token) > _LONGEST or not token.isascii() or not signed.startswith(f"{_VERSION}."):
            raise TokenRefused("bad")
        # Texts are compared, as base64 has several spellings of the same bytes; all secrets, to take the same time.
        good = [hmac.compare_digest(_signature(secret, signed), signature) for secret in self._secrets]
        if not any(good):
            raise TokenRefused("bad")
        fields = json.loads(_decode(signed.partition(".")[2]))  # ours: whoever holds a secret wrote it
        claims = Claims(fields["site"], fields["ancestor"], fields["expires"])
        if now >= claims.expires:
            raise TokenRefused("expired")
        return claims


def _signature(secret: bytes, signed: str) -> str:
    return _encode(hmac.new(secret, signed.encode(), hashlib.sha256).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
