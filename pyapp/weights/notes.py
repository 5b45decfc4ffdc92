"""Small things worth knowing at the next visit, kept beside the weights: JSON values by name, in one file.

Notes are a help and never a need: nothing here raises because of storage. Where the browser refuses it (third-party
iframes) the store's files are in memory, and notes last as long as they do; where it fails or holds rubbish there are
none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import TandemError
from .files import StorageError, read_json, write_json
from .store import Store, default_store

log = logging.getLogger(__name__)

FILE = "notes.json"
MOST = 64
"""Notes in the file. Names may hold versions, so some are never asked for again: those written longest ago give way."""


class Notes:
    """Notes in the files of a store; the browser's where none is given."""

    def __init__(self, store: Callable[[], Awaitable[Store]] = default_store) -> None:
        self._store = store
        self._turn = asyncio.Lock()
        """Two notes written at the same time both stay."""

    async def load(self, name: str) -> Any:
        """The value kept under ``name``; None where there is none."""
        return (await self._read(await self._store())).get(name)

    async def save(self, name: str, value: Any) -> None:
        """Keeps ``value``, anything that JSON can say, under ``name``; None forgets it."""
        async with self._turn:
            store = await self._store()
            table = await self._read(store)  # each time, since another tab may have written
            table.pop(name, None)
            if value is not None:
                table[name] = value
            try:
                await write_json(store.files, store.buffers, FILE, dict(list(table.items())[-MOST:]))
            except (StorageError, TandemError) as error:
                log.info("a note for the next visit could not be kept: %s", error)

    async def _read(self, store: Store) -> dict[str, Any]:
        try:
            kept = await read_json(store.files, store.buffers, FILE)
        except TandemError:  # no room to read it into
            return {}
        return kept if isinstance(kept, dict) else {}
