"""Fixtures of more than one unit test file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .store_fakes import FakeDisk, FakeServer


@pytest.fixture
def server() -> FakeServer:
    """Serves nothing yet."""
    return FakeServer()


@pytest.fixture
async def disk() -> AsyncIterator[FakeDisk]:
    """An empty one, on which no file may be left open."""
    disk = FakeDisk()
    yield disk
    assert disk.handles == [], "a file was left open"
