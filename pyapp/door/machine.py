"""The names under which a visit leaves what it has learned of this machine."""

from __future__ import annotations

import pyapp
from pyapp.door.services import Services


def note_name(what: str, services: Services, adapter: str, *more: object) -> str:
    """The name of a note about the GPU ``adapter``: another one, another version of the browser or another one of ours
    (which may be the cure) has other notes. ``more``: what else such a note depends on.

    A probe leaves none: the adapter has to be asked anyway before it is used, and says it all in milliseconds. What is
    worth keeping is what only work has shown.
    """
    return " ".join([what, pyapp.__version__, *map(str, more), adapter, services.browser])
