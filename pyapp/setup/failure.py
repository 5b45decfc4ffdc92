"""The one exception of the build steps."""

from __future__ import annotations


class SetupError(Exception):
    """A build step cannot go on. The message is one sentence that says why and what to do; no traceback is shown."""
