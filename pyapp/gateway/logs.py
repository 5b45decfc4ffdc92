"""Log lines for machines: one JSON object a line.

What the gateway logs has figures only: no prompt, no answer, no key, no address of a client, in neither format.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, and the figures that the record carries as ``figures``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "figures", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logs(form: str) -> None:
    """Sends the gateway's records from INFO up, and everybody's warnings, to standard error, in ``form``."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True)
    if form == "json":
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    logging.getLogger("tandem").setLevel(logging.INFO)
