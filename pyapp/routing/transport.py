"""What the cloud stream asks of a network: one POST, then the reply's bytes as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol


class Reply(Protocol):
    """A reply whose head has arrived. ``headers`` has lower-case names."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, undone of any content encoding. Raises ``CloudUnavailable`` when the line breaks."""
        ...

    async def close(self) -> None:
        """Ends the exchange at once, whether or not the body was read; harmless when repeated."""
        ...


class Transport(Protocol):
    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Sends ``body``. Raises ``CloudUnavailable`` (``kind="network"``) when no reply comes.

        When the awaiting task is cancelled the exchange is aborted, so that the other side stops its work.
        """
        ...
