"""The Content-Security-Policy of each page.

Also sent with scripts: a worker takes the policy of its own script's response, not of the page that starts it.
"""

from __future__ import annotations

_COMMON = "object-src 'none'; base-uri 'none'; form-action 'self'"

_SITE = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; connect-src 'self'; "
    f"img-src 'self' blob: data:; style-src 'self'; {_COMMON}"
)
# PyScript evaluates strings, adds style elements, and starts its workers from blobs.
_LAB = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' 'wasm-unsafe-eval' blob:; worker-src 'self' blob:; "
    "connect-src 'self' blob: data:; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    f"{_COMMON}"
)


WIDGET = "widget.html"
"""What shops of other origins show in an iframe."""


def policy(path: str, ancestors: str = "'self'") -> str:
    """The policy for the file at ``path`` (site-relative, no leading slash), which ``ancestors`` may show in frames."""
    rules = _LAB if path == "lab.html" or path.startswith("pyscript/") else _SITE
    return f"{rules}; frame-ancestors {ancestors}"
