"""What the operator of a gateway can set, from the environment or in code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import BadArgument
from .continuation import KINDS, TRAILING
from .logs import FORMATS

DEFAULT_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HEADER_TEXT = re.compile(r"[!-~]*")
_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_model_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where ``build.py`` keeps the default GGUF: ``<cache>/models/…``, cache being XDG's ``tandem`` folder."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(cache) / "tandem" / "models" / DEFAULT_MODEL_FILE


@dataclass(frozen=True, slots=True)
class Settings:
    """Each number can be set by an environment variable: ``TANDEM_`` and the field's name in capitals.

    upstream_url      an OpenAI-compatible server: its root, its ``/v1``, or its ``…/chat/completions``
    upstream_key      bearer token for it; stays on this side
    upstream_model    the model's name there
    upstream_continuation   how it goes on with a text that the device began: "trailing" (llama.cpp),
                      "continue_final_message" (vLLM) or "instruction" (others)
    model_path        GGUF for the embedded llama.cpp server, used when no ``upstream_url`` is set (TANDEM_MODEL_PATH)
    config            TOML file of the shops that may ask, and of limits (TANDEM_CONFIG, see ``config``); none: open
    token_secrets     secrets that sign the shops' tokens, the newest first, separated by commas
    metrics_key       bearer token of ``/api/ai/metrics``; without one there is no such address
    log_format        "text" or "json": how ``python -m pyapp.gateway`` writes its log
    embedded          when that server starts: "startup" (in the background), "first_request", or "off"
    """

    upstream_url: str | None = None
    upstream_key: str | None = field(default=None, repr=False)
    upstream_model: str | None = None
    upstream_continuation: str = TRAILING
    model_path: Path | None = None
    config: Path | None = None
    token_secrets: str | None = field(default=None, repr=False)
    metrics_key: str | None = field(default=None, repr=False)
    log_format: str = "text"
    embedded: str = "startup"

    embedded_context: int = 8192
    """Tokens of KV cache that the embedded server's slots share."""
    embedded_slots: int = 4
    """Requests that the embedded server works on at once; more wait their turn."""
    embedded_threads: int = max(1, _CPUS // 2)
    """Half the processors: llama.cpp's threads wait for each other by spinning, so with one for each processor it falls
    to a tenth of its rate (measured: 30 to 3 tokens/s on 2) as soon as the browser beside it works too."""
    embedded_start_seconds: float = 60.0

    max_body_bytes: int = 262_144
    max_messages: int = 256
    max_tokens: int = 2048
    """Most tokens of one answer: a request for more gets this many."""
    max_event_bytes: int = 1 << 20

    body_seconds: float = 15.0
    """For the request's body to arrive."""
    connect_seconds: float = 5.0
    first_seconds: float = 60.0
    """From asking the upstream to its first piece of text."""
    idle_seconds: float = 30.0
    """Between two pieces of text."""
    total_seconds: float = 600.0

    upstream_tries: int = 3
    """How often one request may be sent to the upstream until its answer begins, the first time included."""
    retry_wait_seconds: float = 5.0
    """Longest wait between two tries. An upstream whose Retry-After asks for more is not asked again; the client is."""

    def __post_init__(self) -> None:
        if not self.upstream_url and (self.upstream_key or self.upstream_model):
            raise BadArgument(
                "TANDEM_UPSTREAM_KEY or TANDEM_UPSTREAM_MODEL is set but TANDEM_UPSTREAM_URL is not: give the URL of "
                "an OpenAI-compatible server too, or none of the three to use the embedded one."
            )
        if self.upstream_url and not self.upstream_url.lower().startswith(("http://", "https://")):
            raise BadArgument("TANDEM_UPSTREAM_URL must start with http:// or https://.")
        if self.upstream_continuation not in KINDS:
            raise BadArgument(
                f"TANDEM_UPSTREAM_CONTINUATION is {self.upstream_continuation!r}; give one of {', '.join(KINDS)}."
            )
        if self.log_format not in FORMATS:
            raise BadArgument(f"TANDEM_LOG_FORMAT is {self.log_format!r}; give one of {', '.join(FORMATS)}.")
        if self.embedded not in ("startup", "first_request", "off"):
            raise BadArgument(f"TANDEM_EMBEDDED is {self.embedded!r}; give startup, first_request or off.")
        for name in ("upstream_key", "metrics_key"):
            # Anything else cannot stand in a header, and the libraries' own errors would put it into the log.
            if not _HEADER_TEXT.fullmatch(getattr(self, name) or ""):
                raise BadArgument(
                    f"TANDEM_{name.upper()} holds a blank, a line break or a character outside ASCII; give the key "
                    "alone."
                )
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not value > 0:
                raise BadArgument(f"TANDEM_{item.name.upper()} is {value}; give a number above 0.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Reads the ``TANDEM_…`` variables; an empty one counts as not set. Raises ``BadArgument``."""
        values: dict[str, Any] = {}
        for item in fields(cls):
            name = f"TANDEM_{item.name.upper()}"
            text = environ.get(name, "").strip()
            if not text:
                continue
            if item.name in ("model_path", "config"):
                values[item.name] = Path(text)
            elif isinstance(item.default, int | float):
                values[item.name] = _number(name, text, type(item.default))
            else:
                values[item.name] = text
        if "model_path" not in values:
            values["model_path"] = default_model_path(environ)
        return cls(**values)

    @property
    def completions_url(self) -> str | None:
        """The upstream's chat address, whichever of the three forms ``upstream_url`` has."""
        if not self.upstream_url:
            return None
        url = self.upstream_url.rstrip("/")
        if url.endswith("/chat/completions"):
            return url
        last = url.rsplit("/", 1)[-1]
        if last[:1] == "v" and last[1:].isdigit():
            return f"{url}/chat/completions"
        return f"{url}/v1/chat/completions"


def _number(name: str, text: str, kind: type) -> int | float:
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise BadArgument(f"{name} is {text!r}; give a number.") from None
